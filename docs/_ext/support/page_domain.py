"""A domain that remembers something of each page, for the extensions that need one."""

from sphinx.domains import Domain


class PageDomain(Domain):
    """Each item of ``initial_data`` is a dictionary by page, which follows the page."""

    def clear_doc(self, docname):
        for name in self.initial_data:
            self.data[name].pop(docname, None)

    def merge_domaindata(self, docnames, otherdata):
        for name in self.initial_data:
            theirs = otherdata[name]
            self.data[name].update({doc: theirs[doc] for doc in docnames if doc in theirs})
