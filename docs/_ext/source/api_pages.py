"""One page per upstream symbol, with our links around upstream's own words.

Purpose
    Readers look a class up here and find the signature and docstring of the installed release,
    its source, what it belongs together with, the tutorials that run it, and the symptoms it has a
    part in.

Switch on
    ``"docs._ext.source"`` in ``extensions``, beside ``"sphinx.ext.autodoc"`` and
    ``"sphinx.ext.napoleon"``. Everything else is data in ``docs/reference/api``:

    ``symbols.toml``
        The list: subject, symbol, members to show. A line added is a page, a line removed is a
        page gone. A symbol that does not exist stops the build and names the nearest one.
        ``[usual]`` has the parameters that a page with many starts with; without an entry, they
        are the first ``FIRST``.
    ``relations.toml``
        Groups of symbols and pages that belong together, with a sentence that says why. Every
        member shows its group, so each link exists in both directions.
    ``docstring_patches.toml``
        ``symbol``, ``find`` (a regular expression), ``replace``, ``why``, ``upstream`` (an issue,
        or "not reported"): the smallest changes that make an upstream docstring valid. One that no
        longer applies is a warning.
    ``notes/<symbol>.rst``
        Shown above the docstring: what it gets wrong, in ``.. upstream-says::`` of
        ``upstream_says`` with a doctest that proves what happens instead, and former names. What
        would push the docstring off the first screen goes into a ``.. dropdown::``.

Markup
    ``.. api-index::`` writes the list of pages by subject, below one of the subjects. Each
    subject is a page too, so that the side bar folds. Elsewhere the usual roles work, as in
    ``:class:`torchrl.collectors.Collector```.

What it writes
    ``docs/reference/api/<symbol>.rst`` and ``<subject>.rst`` (ignored by git, replaced only when
    changed, deleted when no longer listed). References inside upstream's docstrings link to our
    pages where we have one and are plain text where we do not; references in our own prose
    stay strict.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
import typing
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.errors import ExtensionError
from sphinx.util import inspect, logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

from docs._ext.source import lookup as source_lookup
from docs._ext.source import role as source_role
from docs._ext.support.files import write_if_changed
from docs._ext.symptoms.contents import ITEMS
from docs._ext.symptoms.store import TOPIC

logger = logging.getLogger(__name__)

FOLDER = "reference/api"
GENERATED = ".. Written by docs/_ext/source/api_pages.py from symbols.toml.\n"
ANYTHING = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
FIRST = 8  # parameters at the top of a page, and a link to those behind them
GALLERY_FOOTER = re.compile(r"^\.\. _sphx_glr_download_", re.MULTILINE)


# -- Data --------------------------------------------------------------------


@dataclass
class Catalog:
    """The parsed files of ``docs/reference/api``."""

    folder: Path
    subjects: list[dict] = field(default_factory=list)
    usual: dict[str, list[str]] = field(default_factory=dict)
    relations: list[dict] = field(default_factory=list)
    patches: list[dict] = field(default_factory=list)

    @cached_property
    def symbols(self) -> dict[str, list[str]]:
        return {
            symbol: members
            for subject in self.subjects
            for symbol, members in subject["symbols"].items()
        }

    def owner(self, symbol: str) -> str | None:
        """The listed symbol on whose page ``symbol`` is shown."""
        listed = self.symbols
        if symbol in listed:
            return symbol
        parent, _, member = symbol.rpartition(".")
        return parent if member in listed.get(parent, []) else None

    def page(self, member: str) -> str:
        """The docname of a relation member."""
        if member.startswith("/"):
            return member[1:]
        return f"{FOLDER}/{self.owner(member)}"


def load_catalog(folder: Path) -> Catalog:
    catalog = Catalog(folder)
    listed = _toml(folder / "symbols.toml")
    catalog.subjects, catalog.usual = listed.get("subject", []), listed.get("usual", {})
    catalog.relations = _toml(folder / "relations.toml").get("relation", [])
    catalog.patches = _toml(folder / "docstring_patches.toml").get("patch", [])
    _check(catalog)
    return catalog


def _toml(path: Path) -> dict:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except tomllib.TOMLDecodeError as problem:
        raise ExtensionError(f"{path}: {problem}") from problem


def _place(file: Path, words: str) -> str:
    """``file:line`` of the first line that holds ``words``."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return f"{file}:{next((n for n, line in enumerate(lines, 1) if words in line), 1)}"


def _check(catalog: Catalog) -> None:
    """Every name in the data files leads somewhere; say which one does not, and what is near."""
    problems = []
    for symbol, members in catalog.symbols.items():
        for name in [symbol, *(f"{symbol}.{member}" for member in members)]:
            try:
                source_lookup.locate(name)
            except source_lookup.SymbolNotFound as problem:
                place = _place(catalog.folder / "symbols.toml", f'"{symbol}"')
                problems.append(f"{place}: {problem}")
    shown = [
        name
        for symbol, members in catalog.symbols.items()
        for name in [symbol, *(f"{symbol}.{member}" for member in members)]
    ]
    named = [
        (name, "relations.toml") for relation in catalog.relations for name in relation["members"]
    ]
    named += [(patch["symbol"], "docstring_patches.toml") for patch in catalog.patches]
    named += [(note.stem, f"notes/{note.name}") for note in catalog.folder.glob("notes/*.rst")]
    for name, file in named:
        if not name.startswith("/") and name not in shown:
            near = difflib.get_close_matches(name, shown, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            place = _place(catalog.folder / file, name)
            problems.append(f"{place}: {name} is not in symbols.toml{hint}")
    if problems:
        raise ExtensionError("\n".join(problems))


# -- Writing the pages -------------------------------------------------------


def write_pages(app) -> None:
    """``builder-inited``, after the gallery has run: write what changed, delete what is gone."""
    catalog = app.api_catalog
    if not catalog.symbols:
        return
    used = _tutorials_by_symbol(app)
    pages = {subject_page(subject): subject_text(subject) for subject in catalog.subjects}
    for symbol in catalog.symbols:
        names = dict.fromkeys([symbol, source_lookup.locate(symbol).definition])
        scripts = [script for name in names for script in used.get(name, [])]
        pages[symbol] = page_text(catalog, symbol, list(dict.fromkeys(scripts)))
    for page, text in pages.items():
        write_if_changed(catalog.folder / f"{page}.rst", text)
    for path in catalog.folder.glob("*.rst"):
        if path.stem not in pages and path.read_text(encoding="utf-8").startswith(GENERATED):
            path.unlink()
    for path in Path(app.outdir, FOLDER).glob("*.html"):
        if path.stem not in pages and path.stem != "index":
            path.unlink()


def subject_page(subject: dict) -> str:
    return subject["title"].lower().replace(" ", "-")


def subject_text(subject: dict) -> str:
    """The page of one subject: what is in it, and the toctree that folds in the side bar."""
    title = subject["title"]
    lines = [GENERATED, title, "=" * len(title), "", *_listing(subject)]
    lines += [".. toctree::", "   :hidden:", ""]
    return "\n".join([*lines, *(f"   {symbol}" for symbol in subject["symbols"])]) + "\n"


def _listing(subject: dict) -> list[str]:
    """The symbols of one subject, each with the first sentence of its docstring."""
    lines = [subject["about"], "", ".. rst-class:: section-list", ""]
    for symbol in subject["symbols"]:
        name = source_lookup.locate(symbol).name
        lines += [f":py:obj:`{name} <{symbol}>`", f"   {summary(symbol)}"]
    return [*lines, ""]


def page_text(catalog: Catalog, symbol: str, used: list[str]) -> str:
    """The page of ``symbol``; ``used`` are the scripts that use it, as ``tutorials/topic/name``."""
    location = source_lookup.locate(symbol)
    is_class = location.kind == "class"
    parts = [
        GENERATED,
        f"{location.name}\n{'=' * len(location.name)}\n",
        f"{'Class' if is_class else 'Function'} of {location.package} "
        f"{source_lookup.version(location.package)}, "
        f"imported as ``{symbol}``, defined in :source:`{location.path} <{symbol}>`.\n",
    ]
    if usual := catalog.usual.get(symbol):
        # so that the page is read again when they change
        parts.append(f".. It starts with {', '.join(usual)}.\n")
    if (catalog.folder / "notes" / f"{symbol}.rst").exists():
        parts.append(f".. include:: notes/{symbol}.rst\n")
    parts.append("Signature and docstring\n-----------------------\n")
    parts.append(f".. auto{'class' if is_class else 'function'}:: {symbol}")
    if is_class:
        parts[-1] += "\n   :show-inheritance:"
        if members := catalog.symbols[symbol]:
            parts[-1] += f"\n   :members: {', '.join(members)}\n   :undoc-members:"
    parts[-1] += "\n"
    if is_class and location.definition.rpartition(".")[2] != symbol.rpartition(".")[2]:
        # an import under another name: autodoc shows only "alias of"
        parts.append(f".. autoclass:: {location.definition}\n   :no-index:\n")
    if related := related_text(catalog, f"{FOLDER}/{symbol}"):
        parts.append(f"Related\n-------\n\n{related}")
    if lessons := [script for script in used if f"/{TOPIC}/" not in script]:
        scripts = "\n   ".join(f"../{script}.py" for script in lessons)
        parts.append(f"Used in\n-------\n\n.. minigallery::\n\n   {scripts}\n")
    if symptoms := [script for script in used if script not in lessons]:
        links = "\n   ".join(
            f"* :doc:`/{script}` :effect:`{script.rpartition('/')[2]}`" for script in symptoms
        )
        pages = "1 page" if len(symptoms) == 1 else f"{len(symptoms)} pages"
        title = f"{pages} of the debugging map use{'s' if len(symptoms) == 1 else ''} it"
        listed = f".. rst-class:: {ITEMS}\n\n   {links}"
        parts.append(f"Symptoms\n--------\n\n.. dropdown:: {title}\n\n   {listed}\n")
    return "\n".join(parts)


def related_text(catalog: Catalog, docname: str) -> str:
    """What the relations say on one page: each group it is in, and the other members."""
    blocks = []
    for relation in catalog.relations:
        if docname not in map(catalog.page, relation["members"]):
            continue
        own_symbol = docname.removeprefix(f"{FOLDER}/")
        lines = [f"**{relation['title']}.** {relation['why']}\n"]
        for member, does in relation["members"].items():
            if member not in (own_symbol, f"/{docname}"):
                lines.append(f"* {_link(member)} {does}.")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _link(member: str) -> str:
    if member.startswith("/"):
        return f":doc:`{member}`"
    return f":py:obj:`{source_lookup.locate(member).name} <{member}>`"


def _tutorials_by_symbol(app) -> dict[str, list[str]]:
    """What sphinx-gallery found: symbol to scripts, as ``tutorials/topic/name``."""
    gallery = getattr(app.config, "sphinx_gallery_conf", {})
    if not gallery.get("backreferences_dir"):
        return {}
    file = Path(app.srcdir, gallery["backreferences_dir"], "backreferences_all.json")
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    root = Path(app.srcdir, gallery["examples_dirs"][0]).resolve().parent
    return {
        symbol: [
            Path(folder, script).relative_to(root).with_suffix("").as_posix()
            for script, folder, *_ in scripts
        ]
        for symbol, scripts in found.items()
    }


# -- Relations on pages of other kinds ---------------------------------------


def add_relations(app, docname, source) -> None:
    """``source-read``: put the relations of a tutorial or any other page before its footer."""
    text = _foreign_relations(app.api_catalog).get(docname)
    if not text:
        return
    block = ".. dropdown:: Related classes, functions and pages\n\n" + "".join(
        f"   {line}\n" if line else "\n" for line in text.split("\n")
    )
    footer = GALLERY_FOOTER.search(source[0])
    position = footer.start() if footer else len(source[0])
    source[0] = f"{source[0][:position]}\n\n{block}\n{source[0][position:]}"


def _foreign_relations(catalog: Catalog) -> dict[str, str]:
    pages = {
        member[1:]
        for relation in catalog.relations
        for member in relation["members"]
        if member.startswith("/")
    }
    return {page: related_text(catalog, page) for page in sorted(pages)}


def outdated_pages(app, env, added, changed, removed) -> list[str]:
    """``env-get-outdated``: pages whose relations changed, and the index when the list did."""
    new = _foreign_relations(app.api_catalog)
    for page in sorted(set(new) - env.found_docs):
        logger.warning(
            "there is no page %s",
            page,
            location=_place(app.api_catalog.folder / "relations.toml", f'"/{page}"'),
            type="api_pages",
            subtype="page",
        )
    new[f"{FOLDER}/index"] = json.dumps(app.api_catalog.subjects)
    old, env.api_injected = getattr(env, "api_injected", {}), new
    return [
        page
        for page in sorted({*old, *new})
        if old.get(page) != new.get(page) and page in env.found_docs and page not in removed
    ]


# -- The index ---------------------------------------------------------------


class ApiIndex(SphinxDirective):
    """``.. api-index::``: the subjects, then the pages of each.

    Each page has the first sentence of its docstring.
    """

    def run(self) -> list[nodes.Node]:
        subjects = self.env.app.api_catalog.subjects
        lines = [".. rst-class:: section-list api-subjects", ""]
        for subject in subjects:
            pages = len(subject["symbols"])
            count = f"{pages}\N{NO-BREAK SPACE}pages"
            lines += [f"`{subject['title']}`_ {count}", f"   {subject['about']}"]
        lines.append("")
        for subject in subjects:
            title = subject["title"]
            lines += [title, "-" * len(title), "", *_listing(subject)]
        lines += [".. toctree::", "   :hidden:", ""]
        lines += [f"   {subject_page(subject)}" for subject in subjects]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def summary(symbol: str) -> str:
    """The first sentence of the docstring, without markup that only works at its own place."""
    paragraph = source_lookup.locate(symbol).summary
    paragraph = re.sub(r":(?!math:)[\w:]+:`~?(?:[\w.]+\.)?([^`]+)`", r"``\1``", paragraph)
    return re.match(r".*?(?:\.(?=\s|$)|$)", paragraph).group()


# -- Upstream's docstrings ---------------------------------------------------


def patch_docstring(app, what, name, obj, options, lines) -> None:
    """``autodoc-process-docstring``, before napoleon."""
    for patch in app.api_catalog.patches:
        if patch["symbol"] != name:
            continue
        text, count = re.subn(patch["find"], patch["replace"], "\n".join(lines), flags=re.MULTILINE)
        lines[:] = text.split("\n")
        if not count:
            logger.warning(
                "the docstring of %s no longer matches %r (%s); delete the patch or adapt it",
                name,
                patch["find"],
                patch["why"],
                location=_place(
                    app.api_catalog.folder / "docstring_patches.toml", f'"{patch["symbol"]}"'
                ),
                type="api_pages",
                subtype="patch",
            )


def finish_signatures(app, doctree) -> None:
    """``doctree-read``: link each signature to its source; relax references in upstream's words.

    Sphinx drops the parentheses of a class that takes nothing; here a class has them.
    The page starts with the signature in short, and what upstream says of it comes last.
    """
    if not app.env.docname.startswith(f"{FOLDER}/"):
        return
    for signature in doctree.findall(addnodes.desc_signature):
        is_class = signature.parent["objtype"] == "class"
        if is_class and not any(signature.findall(addnodes.desc_parameterlist)):
            name = next(signature.findall(addnodes.desc_name))
            signature.insert(signature.index(name) + 1, addnodes.desc_parameterlist())
    head_of(doctree, app.api_catalog)
    for description in doctree.findall(addnodes.desc):
        for signature in description.findall(addnodes.desc_signature):
            if "module" in signature and not signature.get("api_source"):
                _add_source_link(app, signature)
        for reference in list(description.findall(addnodes.pending_xref)):
            # Labels, terms and documents of upstream's own site: the standard domain would warn
            # before any missing-reference handler is asked.
            if reference["refdomain"] == "std":
                reference.replace_self(reference.children)
            else:
                reference["upstream"] = True
                if "." not in reference["reftarget"]:
                    # ``:meth:`.sample``` in a docstring: of this class, or none that we can name;
                    # with this attribute Sphinx would ask every class for one and find several.
                    reference.attributes.pop("refspecific", None)


def head_of(doctree, catalog) -> None:
    """Put the first signature, in short, above the first paragraph, which becomes its text."""
    description = next(iter(doctree.findall(addnodes.desc)), None)
    if description is None:
        return
    signature = short_signature(description[0], catalog)
    section = next(iter(doctree.findall(nodes.section)))
    intro = section[1]
    content = addnodes.desc_content("", intro.deepcopy())
    attributes = {name: description[name] for name in ("domain", "objtype", "classes")}
    intro.replace_self(addnodes.desc("", signature, content, no_index=True, **attributes))


def short_signature(signature, catalog):
    """A copy without address and types: the names of the parameters, with their defaults.

    Of many parameters it has the usual ones, and a link to the whole signature.
    """
    short = signature.deepcopy()
    symbol = next(iter(signature["ids"]), "")
    short["ids"], short["api_source"] = [], True
    for parameters in short.findall(addnodes.desc_parameterlist):
        parameters["multi_line_parameter_list"] = False
    for parameter in short.findall(addnodes.desc_parameter):
        texts = [child.astext() for child in parameter]
        if ":" in texts:
            default = texts.index("=") if "=" in texts else len(texts)
            del parameter[texts.index(":") : default]
        parameter.children = [one for one in parameter if one.astext() != " "]
    for parameters in short.findall(addnodes.desc_parameterlist):
        shorten(parameters, symbol, catalog.usual.get(symbol))
    return short


def shorten(parameters, symbol, usual) -> None:
    """Leave the *usual* parameters, or the first ones where that saves a line."""
    named = [next(one.findall(addnodes.desc_sig_name), None) for one in parameters]
    names = ["" if name is None else name.astext() for name in named]  # "" is a lone star or slash
    if unknown := sorted(set(usual or ()) - set(names)):
        raise ExtensionError(f"symbols.toml: {symbol} has no parameter {', '.join(unknown)}")
    own = [name for name in names if name]
    kept = usual or own[: FIRST if len(own) > FIRST + 3 else None]
    last = max((place for place, name in enumerate(names) if name and name in kept), default=-1)
    left = [
        one
        for place, one in enumerate(parameters)
        if names[place] in kept or (not names[place] and place < last)
    ]
    hidden = sum(name not in kept for name in own)
    parameters.children = left if hidden else parameters.children
    if hidden:
        link = nodes.reference("", f"{hidden} more", refid=symbol, internal=True)
        parameters += addnodes.desc_parameter("", "", link)


def constructor_signature(cls):
    """That of ``__init__``, or of its first overload; where it takes anything, that of a base."""
    for base in cls.__mro__[:-1]:
        if method := vars(base).get("__init__"):
            method = next(iter(typing.get_overloads(method)), method)
            found = inspect.signature(method, bound_method=True)
            if any(one.kind not in ANYTHING for one in found.parameters.values()):
                return found
    return inspect.Signature()


def readable_signature(app, what, name, obj, options, signature, returns):
    """``autodoc-process-signature``: that of the constructor where a class takes anything.

    So it does by a ``__new__`` or a metaclass that hands on what it gets.

    A default in angle brackets is no Python, and Sphinx would show all parameters as one word: a
    class becomes its name, a property the dots of a default that is not shown.
    """
    if what == "class" and re.fullmatch(r"\(\*args, .*\*\*kwargs\)", signature or "", re.DOTALL):
        found = constructor_signature(obj)
        signature = inspect.stringify_signature(
            found, show_return_annotation=False, unqualified_typehints=True
        )
    if signature:
        signature = re.sub(r"<class '(?:[\w.]+\.)?(\w+)'>", r"\1", signature)
        signature = signature.replace("<property object>", "...")
    return signature, returns


def _add_source_link(app, signature) -> None:
    signature["api_source"] = True
    symbol = f"{signature['module']}.{signature['fullname']}"
    link = source_role.source_link(symbol, app.config.source_repositories, "[source]")
    link["classes"].append("viewcode-link")
    signature += link


def resolve_upstream(app, env, node, contnode):
    """``missing-reference``: a reference in an upstream docstring links to our page, or is text."""
    if not node.get("upstream"):
        return None
    symbol = _listed_symbol(app.api_catalog, node["reftarget"])
    if symbol is None or app.builder.format != "html":
        return contnode
    return make_refnode(app.builder, node["refdoc"], f"{FOLDER}/{symbol}", symbol, contnode, symbol)


def _listed_symbol(catalog: Catalog, target: str) -> str | None:
    """The listed symbol that ``target`` is another name of."""
    if "." not in target:
        same_name = [symbol for symbol in catalog.symbols if symbol.endswith(f".{target}")]
        return same_name[0] if len(same_name) == 1 else None
    location = source_lookup.find(target)
    same_definition = [
        symbol
        for symbol in catalog.symbols
        if location and source_lookup.locate(symbol).definition == location.definition
    ]
    return same_definition[0] if same_definition else None


def read_catalog(app) -> None:
    """``builder-inited``, first: one catalog for the whole build."""
    app.api_catalog = load_catalog(Path(app.srcdir, FOLDER))


def setup(app):
    app.setup_extension("docs._ext.source.role")
    app.setup_extension("docs._ext.source.upstream_says")
    app.add_directive("api-index", ApiIndex)
    app.connect("builder-inited", read_catalog, priority=100)
    app.connect("builder-inited", write_pages, priority=600)
    app.connect("source-read", add_relations)
    app.connect("env-get-outdated", outdated_pages)
    app.connect("autodoc-process-docstring", patch_docstring, priority=400)
    app.connect("autodoc-process-signature", readable_signature)
    app.connect("doctree-read", finish_signatures)
    app.connect("missing-reference", resolve_upstream, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
