"""Serve a built site the way a static host does: compressed, cached, with its own 404 page.

python tools/serve.py [--port 8000] [--host 127.0.0.1] [folder]
"""

import argparse
import functools
import gzip
from email.utils import formatdate
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

DEFAULT = Path(__file__).parents[1] / "build" / "html"
PACKED = (".gz", ".ico", ".ipynb.gz", ".jpg", ".png", ".webp", ".woff", ".woff2", ".zip")
YEAR = 31_536_000  # seconds


@functools.lru_cache(maxsize=512)
def compressed(path, modified):
    """The bytes of the file in gzip format; ``modified`` is there to notice an edit."""
    return gzip.compress(path.read_bytes(), mtime=0)


class SiteHandler(SimpleHTTPRequestHandler):
    """Files below the folder; a name without a file gets 404.html."""

    protocol_version = "HTTP/1.1"
    quiet = False
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".ipynb": "application/x-ipynb+json",
        ".js": "text/javascript",
        ".woff2": "font/woff2",
    }

    def log_message(self, format, *args):
        if not self.quiet:
            super().log_message(format, *args)

    def do_GET(self):
        self.answer(body=True)

    def do_HEAD(self):
        self.answer(body=False)

    def answer(self, body):
        path = Path(self.translate_path(self.path))
        status = HTTPStatus.OK
        if path.is_dir():
            address = urlsplit(self.path)
            if not address.path.endswith("/"):  # or the page's relative links point elsewhere
                return self.redirect(address._replace(path=address.path + "/").geturl())
            path /= "index.html"
        if not path.is_file():
            path, status = Path(self.directory) / "404.html", HTTPStatus.NOT_FOUND
            if not path.is_file():
                return self.send_error(status)
        stat = path.stat()
        tag = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'
        if status is HTTPStatus.OK and self.headers.get("If-None-Match") == tag:
            return self.head(HTTPStatus.NOT_MODIFIED, {"ETag": tag})
        pack = "gzip" in self.headers.get("Accept-Encoding", "") and path.suffix not in PACKED
        content = compressed(path, stat.st_mtime_ns) if pack else path.read_bytes()
        kind = self.guess_type(path)
        headers = {
            # The address of an asset carries a digest of its content.
            "Cache-Control": f"max-age={YEAR}" if urlsplit(self.path).query else "no-cache",
            "Content-Length": str(len(content)),
            "Content-Type": f"{kind}; charset=utf-8" if kind.startswith("text/") else kind,
            "ETag": tag,
            "Last-Modified": formatdate(stat.st_mtime, usegmt=True),
            "Vary": "Accept-Encoding",
        }
        self.head(status, headers | ({"Content-Encoding": "gzip"} if pack else {}))
        if body:
            self.wfile.write(content)

    def redirect(self, location):
        self.head(HTTPStatus.MOVED_PERMANENTLY, {"Location": location, "Content-Length": "0"})

    def head(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def server(folder, host="127.0.0.1", port=0, quiet=True):
    """A server that has not started; port 0 takes a free one."""
    handler = type("Handler", (SiteHandler,), {"quiet": quiet})
    return ThreadingHTTPServer((host, port), functools.partial(handler, directory=str(folder)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT)
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 to reach it from a phone")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    if not (options.folder / "index.html").is_file():
        parser.error(f"{options.folder} holds no site; run `make html` first")
    try:
        site = server(options.folder, options.host, options.port, quiet=False)
    except OSError as error:
        parser.error(f"cannot serve at port {options.port} ({error}); choose another with --port")
    print(f"http://{options.host}:{site.server_address[1]}/ (stop with Ctrl+C)", flush=True)
    try:
        site.serve_forever()
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    main()
