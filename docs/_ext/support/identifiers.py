"""Find code in texts without markup: titles of records, labels of charts.

A class such as ``SliceSampler``, a call, a name with an underscore or a dot in it, an argument with
its value. What is spelled like a class and is none is in NO_CODE. No switch, no markup; in Python::

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


def split(text):
    """*text* in parts: ``[(part, whether it is code)]``."""
    parts, end = [], 0
    for found in _CODE.finditer(text):
        parts += [(text[end : found.start()], False), (found[0], True)]
        end = found.end()
    return [(part, code) for part, code in [*parts, (text[end:], False)] if part]


def nodes_of(text):
    """*text* as nodes: code is literal."""
    return [nodes.literal(part, part) if code else nodes.Text(part) for part, code in split(text)]
