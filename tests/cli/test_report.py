# SPDX-License-Identifier: Apache-2.0
"""report: the page is well formed, self-contained and accessible, and says what report.json says, for accepted,
rejected, retained and refused results alike."""
import html.parser
import os
import re

import cli
from cli import check, np

VOID = {"meta", "br", "link", "img", "input", "hr", "rect", "circle", "line", "path"}


class Page(html.parser.HTMLParser):
    def __init__(self, name, text):
        super().__init__()
        self.name, self.stack, self.ids, self.tags, self.svgs, self.text = name, [], [], [], [], []
        self.feed(text)
        self.close()
        check(not self.stack, f"{name}: not closed: {self.stack}")

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append((tag, attrs))
        if "id" in attrs:
            self.ids.append(attrs["id"])
        if tag == "svg":
            self.svgs.append(attrs)
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if check(self.stack and self.stack[-1] == tag, f"{self.name}: </{tag}> closes {self.stack[-1:]}"):
            self.stack.pop()

    def handle_data(self, data):
        self.text.append(data)

    def count(self, tag, **attrs):
        return sum(t == tag and all(a.get(k) == v for k, v in attrs.items()) for t, a in self.tags)


def page_of(path, *options, name=None):
    out = cli.path((name or os.path.basename(path)) + ".html")
    cli.run("report", path, "--out", out, "--force", *options)
    with open(out, "rb") as f:
        first = f.read()
    cli.run("report", path, "--out", out, "--force", *options)
    with open(out, "rb") as f:
        check(f.read() == first, f"{path}: the same page twice")
    return check_page(path, first.decode())


def check_page(name, text):
    """What every page must keep."""
    check(text.startswith("<!DOCTYPE html>\n<html lang=\"en\">"), f"{name}: doctype and language")
    for pattern in (r"https?:", r"//", r"@import", r"url\(", r"<script", r"<link", r"<img", r"<iframe", r"\bsrc=",
                    r"\bhref=", r"javascript:", r"\bon[a-z]+="):
        check(not re.search(pattern, text, re.I), f"{name}: {pattern} on a page that loads nothing and runs nothing")
    page = Page(name, text)
    check(len(page.ids) == len(set(page.ids)), f"{name}: an id twice")
    for svg in page.svgs:
        check(svg.get("role") == "img" and svg.get("aria-labelledby") in page.ids, f"{name}: a plot without a name")
    for tag in ("title", "main", "h1"):
        check(page.count(tag) >= 1, f"{name}: no {tag}")
    check(page.count("h1") == 1 and page.count("meta", charset="utf-8") == 1, f"{name}: one h1, a charset")
    check(all("scope" in a for t, a in page.tags if t == "th"), f"{name}: a header cell without scope")
    return page


def cells(page):
    """Level of every cell of the heat maps."""
    return [int(a["class"][1:]) for t, a in page.tags if t == "rect" and re.fullmatch(r"h\d", a.get("class", ""))]


def says(page, *words):
    text = " ".join(page.text)
    for word in words:
        check(word in text, f"{page.name}: does not say {word!r}")


def fanout(**more):
    return {"kind": "fanout", "embedding": {"weight": "e"}, "residual": "residual",
            "branches": {"a": {"layers": [{"op": "linear", "weight": "a"}], **more}, "b": [{"op": "silu"}]}}


def tensors(rows=50):
    return {"e": cli.random((rows, 24), 1), "a": cli.random((20, 24), 2)}


PROFILES = [{"max_rows": 1, "evaluation_rows": 1}, {"max_rows": 7, "evaluation_rows": 3}]


def compiled(name, document, code=0, weights=None):
    out = cli.path(name)
    cli.compile(cli.folder(name + ".d", weights or tensors(), document), out, code=code)
    return out


def test_accepted():
    out = compiled("accepted", cli.spec(fanout(), row_count_profiles=PROFILES, bulk_rows=16, validation_rows=9,
                                        tolerance={"absolute": 1e-3, "relative": 1e-3}))
    page, report = page_of(out), cli.read_json(out, "report.json")
    recipe = cli.read_json(out, "recipe.json")
    says(page, "accepted_on_full_domain_validation", "may_grow", "execution classes", recipe["seal"],
         recipe["payload"]["sha256"], *report["environment"].values())
    statistics = report["statistics"]
    check(len(cells(page)) == len(statistics), "a cell a statistic")
    check(cells(page).count(0) == sum(s["bitwise"] for s in statistics), "cells of equal bytes")
    check(6 not in cells(page), "no cell is outside")
    check(page.count("svg") == 2 * 3 + 2, "storage, double precision, and two plots an output")
    worst = max(statistics, key=lambda s: s["max_abs"])
    if worst["max_abs"] > 0:
        says(page, f"{worst['max_abs']:.2e}", str(worst["max_abs_at"]["token"]))
    zero = sum(s["ulp_histogram"][0] for s in statistics if s["output"] == "residual")
    says(page, f"{zero:,} (100 %)", f"{report['storage']['logical_before']:,}")
    for place in (out + ".work", os.path.join(out + ".work", "block", "report.json"), os.path.join(out, "recipe.json")):
        check(len(cells(page_of(place, name="other"))) == len(statistics), f"{place}: the same block")
    answer = cli.run("report", out, "--out", cli.path("x.html"), "--json").json()
    check(answer["blocks"][0]["status"] == report["status"] and answer["bytes"] > 1000, "--json")
    cli.run("report", out, "--out", cli.path("x.html"), code=2, stderr="--force")
    cli.run("report", out, code=2, stderr="--out is missing")


def test_rejected():
    # No two summation orders agree to 0, so a profile that is wrong for its sizes is outside somewhere, or all is equal.
    weights = {"e": cli.random((40, 640), 3), "a": cli.random((9, 640), 4)}
    document = cli.spec(fanout(), bulk_rows=16, validation_rows=9, tolerance={"absolute": 0, "relative": 0})
    out = cli.path("rejected")
    r = cli.compile(cli.folder("rejected.d", weights, document), out, code=(0, 5))
    page, report = page_of(out + ".work"), cli.report_of(out)
    outside = [s for s in report["statistics"] if s["max_abs"] > 0]
    check((r.code == 5) == bool(outside) and cells(page).count(6) == len(outside), "cells outside the tolerance")
    says(page, report["status"], *([report["reason"]] if report["reason"] else []))


def test_retained():
    out = compiled("retained", cli.spec(fanout(), storage="must_shrink"), code=6)
    says(page_of(out + ".work"), "retained_no_byte_saving", "take no fewer bytes")


def test_refused():
    weights = tensors()
    weights["e"][7, 3] = np.nan
    out = compiled("refused", cli.spec(fanout()), code=5, weights=weights)
    page = page_of(out + ".work")
    says(page, cli.report_of(out)["status"], cli.report_of(out)["reason"])
    check(not cells(page), "no cells without statistics")
    out = compiled("training", {**cli.spec(fanout()), "mode": "train"}, code=3)
    says(page_of(out + ".work"), "refused_unsupported", "training mode")
    # The same work folder, put right: the refusal is history.
    cli.compile(cli.folder("training.d", tensors(), cli.spec(fanout())), out)
    page = page_of(out + ".work")
    check("refused_unsupported" not in " ".join(page.text) and cells(page), "an older refusal is not shown")


def test_decisions():
    weights = {"e": np.zeros((6, 4), "<f4"), "a": np.eye(4, dtype="<f4")}
    weights["e"][:] = [[3, 2, 1, 0], [0, 1, 2, 3], [1, 1, 0, 0], [5, 0, 5, 1], [0, 0, 1, 0], [9, 8, 7, 6]]
    out = compiled("decisions", cli.spec(fanout(decision={"top_k": 1})), weights=weights)
    decision = cli.report_of(out)["decisions"][0]
    page = page_of(out)
    says(page, "Decisions", "smallest margin")
    if decision["fragile_tokens"]:
        says(page, ", ".join(map(str, decision["fragile_tokens"])))


def test_recipe_state():
    """A page is about the recipe that lies there: none where it is broken, a banner where it has changed since."""
    out = compiled("state", cli.spec(fanout()))
    page, file = cli.path("state.html"), os.path.join(out, "recipe.json")
    payload = os.path.join(out, cli.read_json(file)["payload"]["file"])
    check("historical" not in " ".join(page_of(out).text), "a sealed recipe is not historical")
    with open(file) as f:
        text = f.read()
    with open(payload, "rb") as f:
        data = f.read()
    with open(file, "w") as f:
        f.write(text.replace('"1e-05"', '"1e-04"'))
    r = cli.run("report", out, "--out", page, "--force", "--json")
    check(r.json()["blocks"][0]["historical"] and "historical" in r.err, f"historical: {r.out} {r.err}")
    with open(page) as f:
        says(check_page("historical", f.read()), "historical", "changed since it was validated")
    with open(file, "w") as f:
        f.write(text.replace('"group_0"', '"group_7"', 1))
    os.unlink(page)
    cli.run("report", out, "--out", page, code=3, stderr="recipe.json")
    with open(file, "w") as f:
        f.write(text)
    with open(payload, "wb") as f:
        f.write(data[:-1] + bytes([data[-1] ^ 4]))
    for place in (out, file, os.path.join(out, "report.json")):
        cli.run("report", place, "--out", page, code=3, stderr="corrupt")
    os.unlink(payload)
    cli.run("report", out, "--out", page, code=3, stderr="tables-")
    check(not os.path.exists(page), "no page about a broken recipe")


def test_huge():
    os.makedirs(cli.path("huge"))
    sizes = {"logical_before": 1e300, "logical_after": "Infinity", "unique_before": "NaN", "unique_after": 1.9e19}
    file = cli.write_json(cli.path("huge", "report.json"), {"schema_version": 1, "status": "x", "storage": sizes})
    out = cli.path("huge.html")
    cli.run("report", file, "--out", out)
    with open(out) as f:
        text = f.read()
    for shown in ("1e+300", "inf", "1.9e+19"):
        check(re.search(re.escape(shown) + r"</td><td>16.00 EiB<", text), f"{shown} in the table is all that fits")
        check(f"{shown} (16.00 EiB)" in text, f"{shown} at its bar is all that fits")


def test_blocks():
    blocks = [{**fanout(), "name": "one"}, {**fanout(), "name": "two"}]
    out = compiled("several", cli.spec(blocks))
    for place in (out, out + ".work"):
        page = page_of(place)
        check(page.count("section") == 2, f"{place}: a section a block")
        says(page, "one", "two")


def test_hostile():
    """A report.json is a file like any other: what it says is text, whatever it says."""
    nasty = "<script>alert('x')</script>\"&\n\x7f"
    statistic = {"class": nasty, "output": nasty, "route": nasty, "cases": 1, "elements": 10, "exact": False,
                 "bitwise": False, "unequal": "18446744073709551615", "max_abs": "Infinity", "max_relative_l2": "NaN",
                 "max_ulp": 3, "ulp_histogram": [1, "18446744073709551615", -4, None, "x"]}
    report = {"schema_version": 1, "status": nasty, "reason": nasty, "block": nasty, "kind": nasty, "arithmetic": nasty,
              "environment": {nasty: nasty, "number": 3}, "storage": {"logical_before": -5, "policy": nasty},
              "tables": [{"uses": [[nasty], [], 3]}, 4], "double_precision_error": [{"route": nasty, "table": nasty,
                                                                                    "max_abs": "NaN"}],
              "execution_classes": [{"name": nasty, "layouts": [nasty, 1]}], "statistics": [statistic, 3, []],
              "decisions": [{"output": nasty, "fragile_count": 3, "fragile_tokens": [1, nasty, 3]}],
              "regions": [{nasty: nasty, "list": [nasty, [1], {"a": 2}]}], "more": {nasty: [1, 2]}, nasty: nasty}
    os.makedirs(cli.path("hostile"))
    file = cli.write_json(cli.path("hostile", "report.json"), report)
    out = cli.path("hostile.html")
    cli.run("report", file, "--out", out)
    with open(out) as f:
        text = f.read()
    check("<script" not in text and "&lt;script&gt;" in text, "markup in a report is text")
    page = Page("hostile", text)
    check(len(page.ids) == len(set(page.ids)) and cells(page) == [6], "what is there is shown")

    bad = cli.path("bad")
    os.makedirs(bad)
    cli.run("report", bad, "--out", out, "--force", code=3, stderr="holds no report.json")
    cli.run("report", cli.path("absent"), "--out", out, "--force", code=3)
    for content, pattern in (("{", "report.json"), ("[]", "not a report"), ('{"schema_version": 1}', "not a report"),
                             ('{"schema_version": 7, "status": "x"}', "schema_version 7")):
        with open(os.path.join(bad, "report.json"), "w") as f:
            f.write(content)
        cli.run("report", bad, "--out", out, "--force", code=3, stderr=pattern)
    with open(out) as f:
        check(f.read() == text, "a failed report leaves the old page")


test_accepted()
test_rejected()
test_retained()
test_refused()
test_decisions()
test_recipe_state()
test_huge()
test_blocks()
test_hostile()
cli.finish()
