"""What several packages of extensions share; each of them switches on what it imports."""

MODULES = ("page_state", "row_filter", "site_table", "table_nodes")
