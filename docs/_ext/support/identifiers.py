"""Find code in texts without markup: titles of records, labels of charts.

A class such as ``SliceSampler``, a call, a name with an underscore or a dot in it, an argument with
its value. What is spelled like a class and is none is in NO_CODE. Words between get the apostrophe
of the text around them, sizes a multiplication sign. No switch, no markup; in Python::

    split("SliceSampler(end_key), rows")  # [("SliceSampler(end_key)", True), (", rows", False)]
    nodes_of("SliceSampler(end_key), rows")  # a literal and a text

It writes nothing.
"""

import re

from docutils import nodes

NO_CODE = (
    "CartPoles?|GitHub|HalfCheetah|MsPacman|MuJoCo|NumPy|PufferLib|PyTorch|RLlib|SpaceInvaders"
    "|TorchInductor|TorchRL"
)
_CALLED = r"\((?:[^()]|\([^()]*\))*\)(?:\.\w+)*"
_CODE = re.compile(
    rf"""(?<![\w./-])(?:
    (?!(?:{NO_CODE})\b)(?:[a-z]\w*\.)*(?=\w{{5}})(?=\w*[a-z]\w*[a-z])
        [A-Z]\w*[A-Z]\w*[a-z]\w*(?:{_CALLED}|(?:\.\w+)*)  # SliceSampler(traj_key), EnvBase.step
    |\.?[A-Za-z_][\w.]*(?=\(\)|\([^()]*[(=]){_CALLED}  # .item(), GAE(vectorized=True)
    |\w+=(?:"[^"]*"|-?\w+(?:\.\w+)*)                   # compact_obs=True
    |[A-Za-z]\w*(?:\.[A-Za-z_]\w+)+                    # torch.nn
    |[A-Za-z]*_\w*[A-Za-z]\w*(?:{_CALLED})?            # frame_skip
    |(?:^|(?<=against[ ])|(?<=:[ ]))Collector(?=$|[,:]|[ ]\d|[ ]with)  # a common word, too
    )""",
    re.VERBOSE,
)
_APOSTROPHE = re.compile(r"(?<=\w)'(?=s\b)")
_TIMES = re.compile(r"(?<=\d) x (?=\d)")


def split(text):
    """*text* in parts: ``[(part, whether it is code)]``."""
    parts, end = [], 0
    for found in _CODE.finditer(text):
        parts += [(typeset(text[end : found.start()]), False), (found[0], True)]
        end = found.end()
    return [(part, code) for part, code in [*parts, (typeset(text[end:]), False)] if part]


def typeset(words):
    """*words* that are no code, as the pages around them have them."""
    return _TIMES.sub("\u00a0×\u00a0", _APOSTROPHE.sub("’", words))


def nodes_of(text):
    """*text* as nodes: code is literal."""
    return [nodes.literal(part, part) if code else nodes.Text(part) for part, code in split(text)]
