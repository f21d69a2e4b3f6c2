"""Find code in texts without markup, and curl apostrophes of the rest, where Sphinx does neither.

That is in titles of records, labels of charts, cells of computed tables, hover texts.

A class such as ``SliceSampler``, a call, a name with an underscore or a dot in it, an argument with
its value, a word or a key in straight quotation marks. What is spelled like a class and is none is
in NO_CODE. The message of an exception keeps its apostrophes. Sizes get a multiplication sign. No
switch, no markup; in Python::

    split("SliceSampler(end_key), rows")  # [("SliceSampler(end_key)", True), (", rows", False)]
    nodes_of("SliceSampler(end_key), rows")  # a literal and a text
    curled("a sampler's end_key")  # where there can be no markup

It writes nothing.
"""

import re

from docutils import nodes

NO_CODE = (
    "CartPoles?|GitHub|HalfCheetah|MsPacman|MuJoCo|NumPy|PufferLib|PyTorch|RLlib|SpaceInvaders"
    "|TorchInductor|TorchRL"
)
APOSTROPHE = re.compile(r"(?:(?<=\w)'(?=\w)|^'(?=s\b)|(?<=s)'(?=[ ]\w))")  # of a word, or plural
_MESSAGE = re.compile(r"\w(?:Error|Exception|Warning): ")  # holds it
_WORD = r"""(?:"[^"\s]*"|'[^'\s]*')"""
_QUOTED = rf"(?:{_WORD}|'\[[^]']*\]'|\[{_WORD}(?:,[ ]{_WORD})*\]|\((?:{_WORD}(?:,[ ]|(?=\))))+\))"
_CALLED = r"\((?:[^()]|\([^()]*\))*\)(?:\.\w+)*"
_CODE = re.compile(
    rf"""(?<![\w./-])(?:
    \w+={_QUOTED}                                      # transport="auto", end_key=("next", "done")
    |{_QUOTED}|<class[ ]'[\w.]+'>                      # "scan", ['pad', 'scan']
    |(?!(?:{NO_CODE})\b)(?:[a-z]\w*\.)*(?=\w{{5}})(?=\w*[a-z]\w*[a-z])
        [A-Z]\w*[A-Z]\w*[a-z]\w*(?:{_CALLED}|(?:\.\w+)*)  # SliceSampler(traj_key), EnvBase.step
    |\.?[A-Za-z_][\w.]*(?=\(\)|\([^()]*[(=]){_CALLED}  # .item(), GAE(vectorized=True)
    |\w+=-?\w+(?:\.\w+)*                              # compact_obs=True
    |[A-Za-z]\w*(?:\.[A-Za-z_]\w+)+                    # torch.nn
    |[A-Za-z]*_\w*[A-Za-z]\w*(?:{_CALLED})?            # frame_skip
    |(?:^|(?<=against[ ])|(?<=:[ ]))Collector(?=$|[,:]|[ ]\d|[ ]with)  # a common word, too
    )""",
    re.VERBOSE,
)
_TIMES = re.compile(r"(?<=\d) x (?=\d)")


def split(text):
    """*text* in parts: ``[(part, whether it is code)]``."""
    mark = "'" if _MESSAGE.search(text) else "\N{RIGHT SINGLE QUOTATION MARK}"
    parts, end = [], 0
    for found in _CODE.finditer(text):
        parts += [(text[end : found.start()], False), (found[0], True)]
        end = found.end()
    parts.append((text[end:], False))
    return [(part if code else typeset(part, mark), code) for part, code in parts if part]


def typeset(words, mark):
    """*words* that are no code, as the pages around them have them; *mark* is the apostrophe."""
    return _TIMES.sub("\u00a0×\u00a0", APOSTROPHE.sub(mark, words))


def curled(text):
    """*text* with the apostrophes of its words, and the signs of its sizes."""
    return "".join(part for part, _ in split(text))


def nodes_of(text):
    """*text* as nodes: code is literal."""
    return [nodes.literal(part, part) if code else nodes.Text(part) for part, code in split(text)]
