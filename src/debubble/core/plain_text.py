"""Text from other people's files, safe to show and to send: no character commands, no folder of a machine is told."""

from __future__ import annotations

import re

# Controls (but tab and newline), marks that turn the direction of text, line ends that only some programs know, and
# what no file can hold: halves of characters (bytes of a name that are no UTF-8) and what XML refuses.
_COMMANDS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)
# An absolute path of at least two parts: /home/me/runs/eight, C:\Users\me\eight. Not a share of two units (tokens/s),
# and not an address (s3://bucket/run, https://..): there the first slash follows a letter, a colon or another slash.
_UNIX = re.compile(r"""(?<![\w:/.~\\])/(?:[^\s/'"<>|:]+/)+([^\s/'"<>|:]*)""")
_WINDOWS = re.compile(r"""(?<!\w)(?:[A-Za-z]:|\\)\\(?:[^\s\\'"<>|:]+\\)*([^\s\\'"<>|:]*)""")


def inert(text: str) -> str:
    r"""The text with every character that commands a terminal or turns text around written out, as in ``\x1b``."""
    return _COMMANDS.sub(lambda found: ascii(found[0])[1:-1], text)


def without_folders(text: str) -> str:
    """The text with the last part of each absolute path in its place: whose machine it was is nobody's business."""
    return _WINDOWS.sub(r"\1", _UNIX.sub(r"\1", text))
