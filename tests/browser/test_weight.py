"""What a first visit costs."""

import re

import pytest

BUDGET = 300_000  # bytes over the wire
REQUESTS = 20  # without images and faces; 24 with the theme as it comes
FACES = 4  # fonts of text and code, which hold nothing up


@pytest.mark.parametrize(
    "kind", ["home", "gallery", "tutorial", "internals", "glossary", "api", "search", "guides"]
)
def test_first_visit_is_light(open_page, site_url, sample, kind):
    page = open_page(fresh=True)
    finished = []
    page.on("requestfinished", lambda request: finished.append(request))
    page.goto(site_url + sample.get(kind, "how-to/index.html"), wait_until="networkidle")
    page.evaluate("document.fonts.ready")
    sizes = {
        request.url.removeprefix(site_url): request.sizes()["responseBodySize"]
        for request in finished
    }
    total = sum(sizes.values())
    print(f"{kind}: {total / 1000:.0f} kB in {len(sizes)} requests")
    largest = sorted(sizes.items(), key=lambda item: -item[1])
    assert total < BUDGET, largest[:8]
    images = [request.url for request in finished if request.resource_type == "image"]
    faces = [url for url in sizes if re.search(r"/fonts/(?:sans|mono)", url)]
    assert faces, sorted(sizes)
    assert len(faces) <= FACES, faces
    assert len(sizes) - len(faces) - len(images) <= REQUESTS, sorted(sizes)
    # One icon outside tools/subset_fonts.py fetches the theme's whole font.
    assert [url for url in sizes if "fontawesome" in url] == []
    assert any("icons.woff2" in url for url in sizes)
