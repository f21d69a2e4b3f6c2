"""Link to source by symbol, at the release tag that matches the installed package.

Purpose
    A page names a symbol; the reader lands on its lines in the release that the page was built
    with. Nobody types a line number, and a symbol that upstream removes stops the build.

Switch on
    ``"docs._ext.source"`` in ``extensions``. ``source_repositories`` maps a package to its
    GitHub repository and the pattern of its release tags; the default covers torchrl, tensordict,
    torch and gymnasium. A development release has no tag, so its links go to ``main``.

Markup
    ::

        :source:`torchrl.collectors.Collector.rollout`          (shown as Collector.rollout)
        :source:`the loop <torchrl.collectors.Collector.rollout>`

    A symbol is a module, function, class, method, property, nested class, module constant, or an
    attribute assigned in the class body or through ``self`` in a method.

What it writes
    In HTML a link whose hover text gives package, version, symbol, file and lines. In other
    formats the same text follows in parentheses. A symbol that is not found is a warning
    (``source.missing``) that carries file, line and the nearest names, so ``-W`` stops the build.
    Every page is read again when the version of one of these packages changes.
"""

from __future__ import annotations

import re

from docutils import nodes
from packaging.version import Version
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

from docs._ext.source import lookup as source_lookup
from docs._ext.source.lookup import Location, SymbolNotFound, is_installed, locate, version

logger = logging.getLogger(__name__)

REPOSITORIES = {
    "torchrl": ("pytorch/rl", "v{version}"),
    "tensordict": ("pytorch/tensordict", "v{version}"),
    "torch": ("pytorch/pytorch", "v{version}"),
    "gymnasium": ("Farama-Foundation/Gymnasium", "v{version}"),
}


def url(location: Location, repositories: dict) -> str:
    repository, tag_pattern = repositories[location.package]
    release = version(location.package)
    tag = "main" if Version(release).is_devrelease else tag_pattern.format(version=release)
    return (
        f"https://github.com/{repository}/blob/{tag}/{location.path}"
        f"#L{location.first}-L{location.last}"
    )


def describe(location: Location) -> str:
    return (
        f"{location.package} {version(location.package)}, {location.symbol}: "
        f"{location.path}, lines {location.first} to {location.last}"
    )


def source_link(symbol: str, repositories: dict, text: str = "") -> nodes.reference:
    """A link to the lines of ``symbol``; ``text`` replaces the symbol's own name.

    A text that is the end of the symbol is code, as the name is.
    """
    location = locate(symbol)
    if location.package not in repositories:
        raise SymbolNotFound(
            f"{symbol}: package {location.package!r} is not in source_repositories"
        )
    shown = text or location.name
    code = not text or f".{symbol}".endswith(f".{text.removesuffix('()')}")
    label = nodes.literal(shown, shown) if code else nodes.inline(shown, shown)
    return nodes.reference(
        "",
        "",
        label,
        refuri=url(location, repositories),
        reftitle=describe(location),
        internal=False,
        classes=["source-link"],
    )


class SourceRole(SphinxRole):
    """The ``:source:`` role."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        match = re.fullmatch(r"(.+?)\s*<([\w.]+)>", self.text, re.DOTALL)
        text, symbol = match.groups() if match else ("", self.text.strip())
        try:
            return [source_link(symbol, self.config.source_repositories, text)], []
        except SymbolNotFound as problem:
            logger.warning(
                ":source: %s",
                problem,
                location=self.get_location(),
                type="source",
                subtype="missing",
            )
            return [nodes.literal(text or symbol, text or symbol)], []


class PlainSource(SphinxPostTransform):
    """Outside HTML, write after the link what the hover text says inside it."""

    default_priority = 800

    def run(self, **kwargs) -> None:
        if self.app.builder.format == "html":
            return
        for node in list(self.document.findall(nodes.reference)):
            classes = node.get("classes", [])
            if "source-link" in classes and "viewcode-link" not in classes:
                place = nodes.Text(f" ({node['reftitle']})")
                node.parent.insert(node.parent.index(node) + 1, place)


def record_versions(app, config) -> None:
    """``config-inited``: a changed version of a linked package makes every page out of date."""
    config.source_versions = {
        package: version(package) for package in config.source_repositories if is_installed(package)
    }


def keep_locations(app) -> None:
    """``builder-inited``, first: what one build looked up, the next one knows."""
    if getattr(app.env, "source_versions", None) != app.config.source_versions:
        app.env.source_versions = dict(app.config.source_versions)
        app.env.source_locations = {}
    source_lookup.known = app.env.source_locations


def merge_locations(app, env, docnames, other) -> None:
    """``env-merge-info``: and what a parallel reader looked up."""
    env.source_locations.update(other.source_locations)


def setup(app):
    app.add_config_value("source_repositories", REPOSITORIES, "env", types=[dict])
    app.add_config_value("source_versions", {}, "env", types=[dict])
    app.add_role("source", SourceRole())
    app.add_post_transform(PlainSource)
    app.connect("config-inited", record_versions)
    app.connect("builder-inited", keep_locations, priority=50)
    app.connect("env-merge-info", merge_locations)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
