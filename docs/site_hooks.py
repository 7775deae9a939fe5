"""What mkdocs does with these pages beyond Markdown: generated reference, links to source files, formulas.

Nothing that this makes is kept in the repository, so nothing of it can be out of date. Three jobs:

- **Reference.** The pages of commands, settings and parts are written from the program itself at each build.
- **Links out of docs/.** `../fedframe/core/part.py` is right on GitHub and leads nowhere in a site. Every linked file
  becomes a page of the site that shows it, so that links work offline and `--strict` still finds a broken one.
- **Formulas** become MathML, which browsers draw by themselves: no script, no fonts, no request to another host.
"""

from __future__ import annotations

import dataclasses
import html
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
MATH = re.compile(r'<(span|div) class="arithmatex">\\([\[(])(.*?)\\[\])]</\1>', re.DOTALL)
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
CELL = re.compile(r"<td\b[^>]*>(.*?)</td>", re.DOTALL)
LONG_CELL = 60  # characters that are no column on a phone
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".sh": "sh"}


# -- pages -------------------------------------------------------------------------------------------------------------
def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages: the reference, and every file outside docs/ that a page links to."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))  # the program that is described is the one beside these pages
    for name, write in {"cli": cli_page, "settings": settings_page, "parts": parts_page}.items():
        files.append(File.generated(config, f"reference/{name}.md", content=write()))
    left = {ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"} | linked_outside(files)
    done: set[Path] = set()
    while left - done:
        for path in sorted(left - done):
            done.add(path)
            if path.suffix == ".md":
                left |= {target for target in targets(path) if not target.is_relative_to(ROOT / "docs")}
            files.append(File.generated(config, shown_at(path), content=source_page(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links out of docs/ to the pages that show these files."""
    origin = page.file.src_uri
    shown = origin.startswith("source/")
    place = ROOT / (origin.removeprefix("source/").removesuffix(".md") if shown else f"docs/{origin}")
    if shown and place.suffix != ".md":
        return markdown

    def redirected(match: re.Match[str]) -> str:
        target = (place.parent / match[1]).resolve()
        inside = target.is_relative_to(ROOT / "docs")
        where = str(target.relative_to(ROOT / "docs")) if inside else shown_at(target)
        if not target.is_file() or (inside and not shown):
            return match[0]
        return posixpath.relpath(where, posixpath.dirname(origin) or ".")

    pieces = FENCE.split(markdown)
    return "".join(piece if piece.startswith("```") else LINK.sub(redirected, piece) for piece in pieces)


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Turn formulas into MathML; let tables of long texts become a block per row on a narrow screen."""

    def drawn(match: re.Match[str]) -> str:
        display = "block" if match[2] == "[" else "inline"
        return convert(html.unescape(match[3]).strip(), display=display)

    return TABLE.sub(stackable, MATH.sub(drawn, content))


def stackable(match: re.Match[str]) -> str:
    """A table whose cells know their headings, if it has several columns and long texts: see assets/extra.css."""
    table = match[0]
    headings = [re.sub(r"<[^>]+>", "", each).strip() for each in re.findall(r"<th\b[^>]*>(.*?)</th>", table, re.DOTALL)]
    longest = max((len(re.sub(r"<[^>]+>", "", each)) for each in CELL.findall(table)), default=0)
    if len(headings) < 3 or longest < LONG_CELL:
        return table

    def labelled(row: re.Match[str]) -> str:
        names = iter(headings)
        return re.sub(r"<td\b", lambda _: f'<td data-label="{html.escape(html.unescape(next(names, "")))}"', row[0])

    return re.sub(r"<tr>.*?</tr>", labelled, table, flags=re.DOTALL).replace("<table>", "<table data-rows>", 1)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Take the search's helper for pages in a folder from this site, not from another host."""
    local = posixpath.relpath("assets/worker.js", posixpath.dirname(page.file.dest_uri) or ".")
    return output.replace("https://unpkg.com/iframe-worker/shim", local)


def on_post_template(output: str, template_name: str, config: Any) -> str:
    """The same for the page that a wrong address leads to."""
    return output.replace("https://unpkg.com/iframe-worker/shim", "assets/worker.js")


def linked_outside(files: Files) -> set[Path]:
    """The files outside docs/ that pages link to."""
    pages = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    found = {target for path in pages for target in targets(path)}
    return {path for path in found if path.is_file() and not path.is_relative_to(ROOT / "docs")}


def targets(path: Path) -> Iterator[Path]:
    """What a page links to, as files that are there."""
    for piece in FENCE.split(path.read_text()):
        if not piece.startswith("```"):
            yield from (p for link in LINK.findall(piece) if (p := (path.parent / link).resolve()).is_file())


def shown_at(path: Path) -> str:
    """Where in the site a file of the repository is shown."""
    return f"source/{path.relative_to(ROOT).as_posix()}.md"


def source_page(path: Path) -> str:
    """A file as a page; the search is for the manual, and leaves out source files."""
    if path.suffix == ".md":
        return path.read_text()
    name = path.relative_to(ROOT).as_posix()
    text = path.read_text()
    fence = "`" * (max([2, *map(len, re.findall(r"`{3,}", text))]) + 1)
    head = f"---\nsearch: {{exclude: true}}\n---\n\n# {name}"
    return f"{head}\n\n{fence}{LANGUAGES.get(path.suffix, 'text')}\n{text}\n{fence}\n"


# -- reference ---------------------------------------------------------------------------------------------------------
def cli_page() -> str:
    """Every command with its arguments and options, from the program itself."""
    import typer.main

    from fedframe.cli import app

    program = typer.main.get_command(app)
    lines = ["# Commands", "", "Made from the program at every build; `fedframe COMMAND --help` says the same.", ""]
    lines += ["Options of the program itself:", "", *option_table(program)]
    for name in program.list_commands(context(program)):  # type: ignore[attr-defined]
        lines += command_lines(program.get_command(context(program), name), f"fedframe {name}", 2)  # type: ignore[attr-defined]
    return "\n".join(lines) + "\n"


def context(command: Any) -> Any:
    """A context that help can be made in."""
    return command.make_context("fedframe", [], resilient_parsing=True)


def command_lines(command: Any, path: str, depth: int) -> Iterator[str]:
    """A command as a section; settings that runs have in common are in their own page."""
    yield from ["", f"{'#' * depth} `{path}`", "", (command.help or "").strip(), ""]
    if hasattr(command, "commands"):
        for name in command.list_commands(context(command)):
            yield from command_lines(command.get_command(context(command), name), f"{path} {name}", depth + 1)
        return
    from fedframe.settings import Settings

    options = [p for p in command.params if not is_argument(p)]
    common = [p for p in options if p.name in Settings.model_fields and not p.show_default and not p.required]
    many = len(common) > 20
    shown = [p for p in command.params if not (many and p in common)]
    words = " ".join(p.name.upper() if p.required else f"[{p.name.upper()}]" for p in shown if is_argument(p))
    yield from ["```text", f"{path} {words} [OPTIONS]".replace("  ", " "), "```", "", *parameter_rows(shown)]
    if many:
        yield from ["", f"And every [setting](settings.md) of a run as an option ({len(common)} of them)."]


def option_table(command: Any) -> list[str]:
    """The options of a command."""
    return [*parameter_rows(command.params)]


def is_argument(parameter: Any) -> bool:
    """Whether a parameter is given by its place."""
    return bool(parameter.param_type_name == "argument")


def parameter_rows(parameters: list[Any]) -> Iterator[str]:
    """Parameters as a table."""
    yield from ["| argument or option | default | meaning |", "|---|---|---|"]
    for each in parameters:
        name = each.name.upper() if is_argument(each) else ", ".join([*each.opts, *each.secondary_opts])
        default = "required" if each.required else "" if each.default in (None, False, (), []) else f"`{each.default}`"
        text = re.sub(r"\s*\[/?dim\]|\\(?=\[)", "", getattr(each, "help", None) or "").strip()
        yield f"| `{name}` | {'' if callable(each.default) else default} | {cell(text)} |"


def cell(text: str) -> str:
    """A text as a cell of a table: what looks like HTML or a new cell is not."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def settings_page() -> str:
    """Every setting of a run with its default and its type in plain words."""
    from fedframe.settings import PANELS, Settings

    lines = [
        "# Settings",
        "",
        "Every setting has one name: `--eval-every 5` on the command line, `eval_every: 5` in YAML, `eval_every=5` in",
        "Python. How they are combined: [configuration](../configuration.md). Settings of methods: [parts](parts.md).",
    ]
    for panel, names in {"Method": ["method", "set"], **PANELS}.items():
        lines += ["", f"## {panel}", "", "| setting | what it takes | default | meaning |", "|---|---|---|---|"]
        for name in names:
            field = Settings.model_fields[name]
            default = field.get_default(call_default_factory=True)
            shown = "" if default is None else f"`{str(default).lower() if isinstance(default, bool) else default}`"
            lines.append(f"| `{name}` | {kind_of(field)} | {shown} | {cell(field.description or '')} |")
    return "\n".join(lines) + "\n"


def kind_of(field: Any) -> str:
    """The type of a setting in plain words, with its bounds."""
    words = {"bool": "true or false", "int": "whole number", "float": "number", "str": "text", "dict": "mapping"}
    text = str(getattr(field.annotation, "__name__", field.annotation))
    found = [word for name, word in words.items() if re.search(rf"\b{name}\b", str(field.annotation)) or text == name]
    if "Literal" in str(field.annotation):
        found = [", ".join(f"`{value}`" for value in re.findall(r"'([^']+)'", str(field.annotation)))]
    bounds = []
    for each in field.metadata:
        for name, sign in {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}.items():
            if (value := getattr(each, name, None)) is not None:
                bounds.append(f"{sign} {value}")
    return ", ".join(["; or ".join(found) or "text", *bounds])


def parts_page() -> str:
    """Every method with its parts, and every part with its settings."""
    from fedframe.core.part import filled_slots
    from fedframe.methods.part_settings import default_part
    from fedframe.methods.parts import PARTS
    from fedframe.methods.recipes import RECIPES, first_line
    from fedframe.methods.setting_texts import setting_text

    lines = [
        "# Methods and parts",
        "",
        "A method is a recipe of parts ([a method of your own](../own-method.md)). A part's settings are given with",
        "`--set part.setting=value`.",
        "",
        "## Methods",
        "",
        "| method | what it does | parts |",
        "|---|---|---|",
    ]
    for name, recipe in RECIPES.items():
        used = ", ".join(f"[`{part.name}`](#{part.name})" for part in recipe.parts) or "the defaults"
        lines.append(f"| `{name}` | {cell(recipe.summary)} | {used} |")
    lines += ["", "## Parts"]
    for name, kind in PARTS.items():
        slots = " and ".join(sorted(filled_slots(kind)))
        lines += ["", f"### `{name}` {{ #{name} }}", "", cell(first_line(kind)) + (f" Fills {slots}." if slots else "")]
        fields = dataclasses.fields(kind)
        if fields:
            part = default_part(kind)
            lines += ["", "| setting | default | meaning |", "|---|---|---|"]
        for each in fields:
            value = getattr(part, each.name)
            shown = "" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"
            lines.append(f"| `{name}.{each.name}` | {shown} | {cell(setting_text(kind, each.name))} |")
    return "\n".join(lines) + "\n"
