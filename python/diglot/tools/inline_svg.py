"""A picture as SVG within a page: colours of its style sheet, and words under the pointer."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Mapping
from xml.etree import ElementTree

from diglot.tools.drawing import COLORS, STYLE, Picture, drawn, shown

DARK = {"ink": "#e9ebef", "soft": "#a6adb9", "rule": "#343a45", "bad": "#ff8f85"}
DARK |= {"card": "#1a1d23", "c0": "#5cabf2", "c1": "#f7a44c", "c2": "#b3bac5", "c3": "#c49cf2"}
DARK |= {"c4": "#d3a878", "c5": "#5ecf94", "c6": "#4fcfda", "c7": "#f08ccb"}
VARIABLES = {color: f"var(--{name})" for name, color in COLORS.items()}
# What the style sheet says, or every browser takes without it.
DEFAULT = (
    rf"font-size: {STYLE['font.size']}px; ?|font-family: [^;]*; ?|(?<!\w)rotate\(-0 [^)]*\)"
    r"|; stroke-linecap: \w+|; stroke-linejoin: \w+"
)


def inline(picture: Picture, has_title: bool = False) -> str:
    """A picture as an element of a page, which has the style sheet of `variables`."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with drawn(picture, has_title, {"figure.facecolor": "none"}) as figure:
        figure.savefig(file, format="svg", metadata=nothing)
    text = file.getvalue()
    root = ElementTree.fromstring(text)
    unique = hashlib.sha256(text.encode()).hexdigest()[:6]  # ids are the whole page's
    used = sorted(set(re.findall(r'(?:url\(#|href="#)(\w+)', text)))
    ids = {name: f"i{unique}{number}" for number, name in enumerate(used)}
    for element in list(root.iter()):
        element.tag = element.tag.rpartition("}")[2]
        element.text, element.tail = (element.text or "").strip() or None, None
        attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        name = attributes.pop("id", "")
        plain = {key: _plain(value, ids) for key, value in attributes.items()}
        element.attrib = {key: value for key, value in plain.items() if value}
        if name in ids:
            element.set("id", ids[name])
        elif name.startswith("["):
            marks = [mark for mark in element.iter() if mark.tag.endswith("use")]
            for mark, words in zip(marks, json.loads(name), strict=False):
                ElementTree.SubElement(mark, "title").text = words
    _shorten(root)
    root.attrib = {
        "xmlns": "http://www.w3.org/2000/svg",
        "role": "img",
        "aria-label": " ".join(shown(picture.title).split()),
        "viewBox": root.get("viewBox", ""),
        "style": f"font-size: {STYLE['font.size']}px",
    }
    return ElementTree.tostring(root, encoding="unicode")


def standalone(picture: Picture) -> str:
    """A picture as an SVG file with a background, in the mode of who looks at it."""
    opening, _, rest = inline(picture, has_title=True).partition(">")
    background = '<rect width="100%" height="100%" fill="var(--card)"/>'
    font = "svg { font-family: system-ui, sans-serif; color-scheme: light dark; }"
    return f"{opening}><style>{variables('svg')}{font}</style>{background}{rest}\n"


def variables(selector: str) -> str:
    """A style sheet's colours, light and dark."""
    light, dark = (
        "".join(f"--{name}: {color}; " for name, color in colors.items())
        for colors in (COLORS, DARK)
    )
    dark_mode = "@media (prefers-color-scheme: dark)"
    return f"{selector} {{ {light}}}\n{dark_mode} {{ {selector} {{ {dark}}} }}\n"


def _plain(value: str, ids: Mapping[str, str]) -> str:
    """An attribute without defaults, and without digits that nobody sees."""
    value = re.sub(DEFAULT, "", value)
    value = re.sub(r"#[0-9a-f]{6}\b", lambda found: VARIABLES.get(found[0], found[0]), value)
    value = re.sub(r"(?<=#)[mph][0-9a-f]{8,}", lambda found: ids[found[0]], value)
    value = re.sub(r"\d+\.\d{2,}", _digits, value)
    return " ".join(value.split())


def _digits(found: re.Match[str]) -> str:
    value = float(found[0])
    return f"{value:.{1 if value >= 10 else 2}f}".rstrip("0").rstrip(".")


def _shorten(parent: ElementTree.Element) -> None:
    """Leaves out what shows nothing, joins paths of one style, and says a style once."""
    children = list(parent)
    parent[:] = []
    shared = {child.get("style") for child in children if child.tag == "use"}
    if parent.tag == "g" and len(shared) == 1 and not parent.get("style"):
        parent.set("style", shared.pop() or "")
        for child in children:
            child.attrib.pop("style" if child.tag == "use" else "", None)
    for child in children:
        _shorten(child)
        is_path, is_box = child.tag == "path", child.tag in ("defs", "g")
        if child.tag in ("metadata", "style") or (is_box and not len(child)):
            continue
        if is_path and (not child.get("d") or child.get("style") == "fill: none"):
            continue
        if child.tag == "g" and not child.attrib:
            parent.extend(child)
        elif is_path and len(parent) and _style(child) == _style(parent[-1]):
            parent[-1].set("d", f"{parent[-1].get('d')} {child.get('d')}")
        else:
            parent.append(child)


def _style(element: ElementTree.Element) -> object:
    """What paths must share to be one; ids are of no two."""
    return element.tag, {key: value for key, value in element.items() if key != "d"}
