"""The local server answers as a static host does."""

import gzip
import threading
import urllib.error
import urllib.request

import pytest

from tools.serve import server


@pytest.fixture
def get(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text("home")
    (tmp_path / "sub" / "index.html").write_text("sub")
    (tmp_path / "404.html").write_text("not here")
    (tmp_path / "a.png").write_bytes(b"png")
    running = server(tmp_path)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()

    def request(path, **headers):
        address = f"http://127.0.0.1:{running.server_address[1]}{path}"
        asked = urllib.request.Request(address, headers=headers)
        try:
            with urllib.request.urlopen(asked) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    yield request
    running.shutdown()
    thread.join()
    running.server_close()


def test_text_is_compressed_for_those_who_ask(get):
    assert get("/")[2] == b"home"
    status, headers, body = get("/", **{"Accept-Encoding": "gzip"})
    assert (status, headers["Content-Encoding"]) == (200, "gzip")
    assert gzip.decompress(body) == b"home"
    assert get("/a.png", **{"Accept-Encoding": "gzip"})[2] == b"png"


def test_folder_gets_its_index(get):
    assert get("/sub")[2] == get("/sub/")[2] == b"sub"


def test_unknown_address_gets_the_404_page(get):
    status, _, body = get("/sub/deep/none.html")
    assert (status, body) == (404, b"not here")
    assert get("/../../etc/passwd")[0] == 404


def test_caching(get):
    _, headers, _ = get("/index.html")
    assert headers["Cache-Control"] == "no-cache"
    assert get("/index.html", **{"If-None-Match": headers["ETag"]})[0] == 304
    assert get("/index.html", **{"If-None-Match": '"old"'})[0] == 200
    assert "31536000" in get("/a.png?v=1")[1]["Cache-Control"]
