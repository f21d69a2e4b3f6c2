"""Every page passes the W3C's checker."""


def test_every_page_is_valid(vnu, site, all_pages, redirects):
    found = [
        f"{message['url'].removeprefix('file:' + str(site) + '/')}:{message['lastLine']}: "
        + message["message"]
        for message in vnu(*(site / name for name in [*all_pages, *redirects]))
    ]
    assert found == []
