"""Each probe of the browser tests, on a page that is wrong and on the same page put right."""

import pytest

from tests.browser.probes import (
    Traffic,
    overlaps,
    sideways,
    unreachable_scrollers,
    violations,
    walk,
)

PAGE = (
    '<!DOCTYPE html><html lang="en"><head><title>t</title></head>'
    "<body><main>{}</main></body></html>"
)
RIGHT = "<h1>Title</h1><p>Text</p>"


def show(page, body, style=""):
    page.set_content(PAGE.format(f"<style>{style}</style>{body}"))
    return page


@pytest.mark.parametrize(
    ("rule", "body"),
    [
        ("image-alt", '<img src="data:," width="9" height="9">'),
        ("color-contrast", '<p style="color:#999;background:#fff">pale</p>'),
        ("link-name", '<a href="#x"></a>'),
        ("button-name", "<button></button>"),
        ("heading-order", "<h4>deep</h4>"),
    ],
)
def test_axe_reports(open_page, rule, body):
    page = open_page()
    assert violations(show(page, RIGHT)) == []
    found = violations(show(page, RIGHT + body))
    assert [line.split()[0] for line in found] == [rule]


@pytest.mark.parametrize(
    "body",
    [
        '<b>one</b> <b class="pale" id="x">two</b>',
        '<p><b>one</b></p><p style="background:#333"><b id="x">two</b></p>',
        '<p><b>one</b></p><p style="opacity:0.3"><b id="x">two</b></p>',
        '<b class="pale" id="x">one</b> <b class="pale">looks the same</b>',
        '<b class="pale big">big</b> <b class="pale" id="x">two</b>',
        '<div><b>one</b><i></i><b id="x">two</b></div>',
    ],
)
def test_axe_is_asked_of_each_look(open_page, body):
    style = (
        ".pale {color:#888} .big {font-size:40px} div {position:relative; height:200px}"
        "div > * {position:absolute; top:0} i {top:50px; width:90px; height:60px; background:#222}"
        "i + b {top:60px}"
    )
    found = violations(show(open_page(), RIGHT + body, style))
    assert [line.split(":")[0] for line in found] == ["color-contrast (serious) at #x"]


def test_sideways_names_the_element(open_page):
    page = open_page(width=360)
    assert sideways(show(page, RIGHT)) == []
    assert 'id="wide"' in sideways(show(page, '<div id="wide" style="width:400px">w</div>'))[-1]
    hidden = f'<div style="overflow-x:auto">{RIGHT}<p id="long" style="width:400px">w</p></div>'
    assert 'id="long"' in sideways(show(page, hidden))[-1]
    inside = RIGHT + '<div style="overflow-x:auto"><div style="width:400px">w</div></div>'
    assert sideways(show(page, inside)) == []


def test_scrollers_need_a_tab_stop(open_page):
    box = '<div {} style="overflow-x:auto;width:100px"><pre style="width:400px">w</pre></div>'
    page = open_page(width=360)
    assert unreachable_scrollers(show(page, box.format('tabindex="0"'))) == []
    assert len(unreachable_scrollers(show(page, box.format("")))) == 1


def test_overlaps_names_both(open_page):
    body = '<b style="display:inline-block;width:{}px;white-space:nowrap">a b c</b><b>d</b>'
    assert overlaps(show(open_page(), body.format(90)), "b") == []
    assert overlaps(show(open_page(), body.format(9)), "b") == [["a b c", "d"]]


def test_walk_misses_an_invisible_focus(open_page):
    links = '<a href="#a">first</a> <a href="#b">second</a>'
    style = "a:focus-visible { outline: 2px solid red }"
    stops, invisible = walk(show(open_page(), links, style))
    assert [name.split()[1] for name in stops] == ["first", "second"]
    assert invisible == []
    stops, invisible = walk(show(open_page(), links, "a:focus { outline: none }"))
    assert [name.split()[1] for name in invisible] == ["first", "second"]


def test_traffic_reports_a_request_to_another_host(open_page, site_url):
    page = open_page()
    # Nothing leaves the machine: the request is seen, then refused.
    page.route("https://example.org/*", lambda route: route.abort())
    traffic = Traffic(page, site_url)
    page.goto(site_url + "search.html")
    assert traffic.outside == traffic.complaints == traffic.failed == []
    page.evaluate("new Image().src = 'https://example.org/x.png'")
    page.evaluate("fetch('missing.json').then(() => console.error('odd'))")
    page.wait_for_function("performance.getEntriesByName(new URL('missing.json', location)).length")
    page.wait_for_timeout(200)
    assert traffic.outside == ["https://example.org/x.png"]
    assert {"https://example.org/x.png", f"404 {site_url}missing.json"} <= set(traffic.failed)
    assert "error: odd" in traffic.complaints


def test_traffic_leaves_out_what_the_browser_gave_up_to_leave_a_page(open_page, site_url):
    page = open_page()
    page.route("**/endless.json", lambda route: None)
    page.goto(site_url + "search.html")
    with Traffic(page, site_url) as traffic:
        page.evaluate("void fetch('endless.json').catch(() => 0)")
        page.goto(site_url + "404.html")
    assert traffic.failed == []


def test_vnu_reports_a_stray_tag(vnu, tmp_path):
    right, wrong = tmp_path / "right.html", tmp_path / "wrong.html"
    right.write_text(PAGE.format(RIGHT))
    wrong.write_text(PAGE.format(RIGHT + '</p><div tooltip="x">y</div>'))
    found = vnu(right, wrong)
    assert {message["url"] for message in found} == {f"file:{wrong}"}
    texts = " ".join(message["message"] for message in found)
    assert "No “p” element in scope" in texts
    assert "Attribute “tooltip” not allowed" in texts
