"""Vega-Lite specifications drawn as SVG, with what all pictures share: colours, a pale grid, no frame.

Reference: Satyanarayan et al. (2017), "Vega-Lite: a grammar of interactive graphics".
"""

import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

#: A specification, or a part of one.
Spec = Mapping[str, Any]

#: What is drawn in a colour has the page's variable in its place.
INK, MUTED, LINES, ACCENT, GREY = "#1b1d21", "#5b616b", "#e3e4e6", "#0b5fff", "#9ca3af"
COLOURS = ("#0f62ad", "#b5460f", "#00795b", "#8a3b8f", "#5d6470", "#7a6a00")
VARIABLES = {INK: "ink", MUTED: "mut", LINES: "line", ACCENT: "acc", GREY: "grey"} | {
    colour: f"c{number}" for number, colour in enumerate(COLOURS, 1)
}
#: Version of Vega-Lite that draws.
VERSION = "6.4"
_QUIET: Any = {"labelColor": MUTED, "titleColor": MUTED, "titleFontWeight": "normal"}
THEME: Any = {
    "padding": {"left": 14, "right": 8, "top": 5, "bottom": 5},  # fonts of readers may be wider
    "view": {"stroke": None},
    "axis": {**_QUIET, "domain": False, "ticks": False, "gridColor": LINES, "gridWidth": 0.8, "labelPadding": 5,
             "labelLimit": 150, "titleFontSize": 10},
    "legend": {**_QUIET, "orient": "bottom", "layout": {"bottom": {"direction": "vertical", "margin": 4}},
               "title": None, "labelLimit": 190, "symbolOpacity": 1, "symbolStrokeWidth": 0, "offset": 10,
               "rowPadding": 3, "columnPadding": 30},
    "text": {"color": INK, "fontSize": 10},
}  # fmt: skip
_SVG = "http://www.w3.org/2000/svg"
#: What a picture is made of. None of it can hold a script, a style or an address.
_ELEMENTS = frozenset({"svg", "g", "path", "line", "text"})
_ATTRIBUTES = frozenset(
    {"aria-hidden", "aria-label", "aria-roledescription", "d", "fill", "fill-opacity", "font-size", "font-weight",
     "height", "opacity", "overflow", "role", "stroke", "stroke-dasharray", "stroke-miterlimit", "stroke-opacity",
     "stroke-width", "text-anchor", "transform", "viewBox", "width", "x2", "y2"}
)  # fmt: skip
#: Attributes that say what holds anyway, or what the page says: its font is that of the text.
_IDLE = ("font-family", "pointer-events", "class", "version")
_DEFAULTS = {("opacity", "1"), ("transform", "translate(0,0)"), ("role", "graphics-object")}


def drawn(spec: Spec, variables: Mapping[str, str] | None = None) -> str:
    """Return a specification as SVG. The same specification gives the same text.

    Args:
        spec: Specification with its data, and with a description, which screen readers hear as the name.
        variables: Names of the page's CSS variables by colour. The text then has the font of the page. If None, the
            picture stands alone.
    """
    import vl_convert
    from pydantic_core import to_json

    text = vl_convert.vegalite_to_svg(to_json(spec).decode(), vl_version=VERSION, allowed_base_urls=[])
    root = ElementTree.fromstring(text)
    _simplify(root, variables or {})
    root.attrib |= {"role": "graphics-document", "aria-label": str(spec.get("description", "")), "overflow": "visible"}
    if variables is None:
        root.set("font-family", "system-ui, sans-serif")
    return ElementTree.tostring(root, encoding="unicode").replace("ns0:", "").replace(":ns0=", "=")


def is_drawing(svg: object) -> bool:
    """Return whether a text is an SVG of shapes and texts alone, as `drawn` writes most pictures.

    A run's folder may come from others, so a script, a link or a style in it must not reach a page.
    """
    if not isinstance(svg, str):
        return False
    try:
        elements = list(ElementTree.fromstring(svg).iter())
    except ElementTree.ParseError:
        return False
    tags = {f"{{{_SVG}}}{name}" for name in _ELEMENTS}
    return all(element.tag in tags and element.attrib.keys() <= _ATTRIBUTES for element in elements)


#: Pixels of a saved PNG for each pixel of a specification.
_SCALE = 3
#: Formats that a picture is saved in.
FORMATS = ("svg", "pdf", "png")


def rendered(spec: Spec, form: str) -> bytes:
    """Render a Vega-Lite specification as the bytes of a self-contained file. PDF and PNG have a white background.

    Args:
        spec: Specification with its data.
        form: One of `FORMATS`.
    """
    if form == "svg":
        return drawn(spec).encode()
    import vl_convert
    from pydantic_core import to_json

    text = to_json({**spec, "background": "white"}).decode()
    if form == "pdf":
        return vl_convert.vegalite_to_pdf(text, vl_version=VERSION, allowed_base_urls=[])
    return vl_convert.vegalite_to_png(text, vl_version=VERSION, scale=_SCALE, allowed_base_urls=[])


def _simplify(element: ElementTree.Element, variables: Mapping[str, str]) -> None:
    """Leave out what shows nothing, shorten numbers, and put variables in place of colours."""
    for name, value in list(element.attrib.items()):
        if name in _IDLE or (name, value) in _DEFAULTS or (name == "aria-roledescription" and "group" in value):
            del element.attrib[name]
        elif name in ("fill", "stroke") and value in variables:
            element.set(name, f"var(--{variables[value]})")
        elif name in ("transform", "d"):
            element.set(name, re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", value))
    for child in list(element):
        _simplify(child, variables)
        is_shape = child.tag == f"{{{_SVG}}}path" and "fill" not in child.attrib and "stroke" not in child.attrib
        if is_shape or (child.tag == f"{{{_SVG}}}g" and not len(child)):
            element.remove(child)
