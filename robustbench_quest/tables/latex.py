"""LaTeX with booktabs.

The document needs ``\\usepackage{booktabs}``, and xelatex or lualatex if names are in scripts that pdflatex
does not print.
"""

from __future__ import annotations

from .grid import Grid

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # \textquotedbl would need the T1 encoding
    '"': r"{\char34}",
}


# TeX makes one character of each of these pairs, as of -- a dash; a kern of no width keeps them two. Empty
# braces would not do: LuaTeX and XeTeX look for pairs behind them.
_PAIRS = ("--", "``", "''", "?`", "!`", ",,", "<<", ">>")
_APART = r"{\kern0pt}"


def escape(text: str) -> str:
    """Return ``text`` so that LaTeX prints it as it is.

    >>> print(escape("vit_ti & 50% #1"))
    vit\\_ti \\& 50\\% \\#1
    """
    return "".join(
        (_APART if before + character in _PAIRS else "") + _SPECIAL.get(character, character)
        for before, character in zip(" " + text, text, strict=False)
    )


def to_latex(grid: Grid) -> str:
    """Return a ``table`` environment with the grid, and its notes below."""
    rows, notes = grid.printed()
    alignment = "l" * grid.text_columns + "r" * (len(grid.columns) - grid.text_columns)
    lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{alignment}}}", r"\toprule"]
    if any(title for title, _ in grid.groups):
        heads, rules, start = [], [], 1
        for title, width in grid.groups:
            heads.append(rf"\multicolumn{{{width}}}{{c}}{{{escape(title)}}}")
            if title:
                rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
            start += width
        lines += [" & ".join(heads) + r" \\", " ".join(rules)]
    lines += [" & ".join(map(escape, grid.columns)) + r" \\", r"\midrule"]
    # Braces: a cell that starts with "[" would otherwise be read as the optional argument of \\.
    lines += [" & ".join(f"{{{escape(cell)}}}" for cell in row) + r" \\" for row in rows]
    lines += [r"\bottomrule", r"\end{tabular}", r"\par\smallskip\raggedright\footnotesize"]
    lines += [escape(note) + r"\par" for note in notes]
    return "\n".join([*lines, r"\end{table}", ""])
