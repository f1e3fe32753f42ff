"""A posterior's page: sound HTML with everything inside, texts escaped, "not private" at the top where it is due."""

import re
from dataclasses import replace

import numpy as np
import pytest

from dpmcmc.design import Design
from dpmcmc.errors import ResultError
from dpmcmc.results import Picture, Spend, html_report, report
from dpmcmc.schema import Field, Schema
from tests.privacy.cases import ledger
from tests.results.cases import FLAGGED, STATEMENTS, fitted, make_posterior, make_quality
from tests.results.pages import Page

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
SVG = (
    b'<?xml version="1.0"?>\n<svg width="10pt" height="5pt"><metadata>who made it</metadata><defs><path id="a"/></defs>'
    b'<use href="#a" style="clip-path: url(#a); fill: #0072b2"/></svg>'
)


def shown(posterior, **options):
    """The page's texts and its source."""
    text = html_report(posterior, **options)
    return " ".join("".join(Page(text).texts).split()), text


def picture(name="one", content=SVG, **options):
    return Picture(name=name, content=content, label="A <label>", caption="Below & beside", **options)


@pytest.mark.parametrize("kind", list(STATEMENTS))
def test_every_kind_of_run_has_a_page_that_says_what_it_is(kind):
    posterior = make_posterior(kind)
    texts, source = shown(posterior)
    assert ("Private: exact noise" in texts) == posterior.privacy.private
    assert ("Not private" in texts) == (not posterior.privacy.private)
    assert ("seed" in texts.lower()) == (kind == "seeded")
    assert ("NO: there was no noise" in texts) == (kind == "noise-free")
    assert "Posterior of logistic regression" in texts
    assert "beta[größe]" in texts
    assert "None" not in texts
    for warning in posterior.warnings:
        assert warning in texts
    assert not re.search(r"url\((?!#)|@import|<script|<link|<img", source)


def test_a_sampler_without_accept_test_has_no_acceptance():
    texts, _ = shown(make_posterior(sample_stats={}, warmup_stats={}))
    assert "cceptance" not in texts


def test_numbers_of_the_statement():
    rows = dict(report.statement_rows(make_posterior("private")))
    assert rows["Private"] == "yes"
    assert rows["Spent"] == "ε = 1, δ = 1e-06"
    assert rows["Released: log-ratio"] == "100 noisy sums, noise multiplier τ = 80"
    assert "Spent" not in dict(report.statement_rows(make_posterior("seeded")))


def test_what_was_asked_with_many_multipliers_is_one_row():
    made = STATEMENTS["private"]
    entries = {f"clip_count ({place})": 2 for place in range(1, 41)}
    multipliers = {label: 100.0 + place for place, label in enumerate(entries)}
    changes = {"queries": made.queries | entries, "noise_multipliers": made.noise_multipliers | multipliers}
    rows = report.statement_rows(make_posterior(privacy=replace(made, **changes)))
    released = {label: text for label, text in rows if label.startswith("Released")}
    assert released == {
        "Released: gradient": "1,200 noisy sums, noise multiplier τ = 312.5",
        "Released: log-ratio": "100 noisy sums, noise multiplier τ = 80",
        "Released: clip-count": "80 noisy sums, noise multipliers τ = 100 to 139",
    }


class TestTrust:
    def test_a_flagged_result_says_so_at_the_top_and_why_below(self):
        texts, _ = shown(fitted(make_quality(**FLAGGED)))
        assert texts.index("Flagged. Do not trust") < texts.index("ε spent") < texts.index("How far to trust this")
        section = texts[texts.index("How far to trust this") : texts.index("Summary")]
        for text in (*FLAGGED["reasons"], *FLAGGED["notes"], *FLAGGED["prior_only"], "about 0 % (± 0.2 %)", "60 %"):
            assert text in section, text
        assert all(texts.count(reason) == 1 for reason in FLAGGED["reasons"])
        assert "found nothing against" not in texts

    def test_a_good_one_says_so_too(self):
        texts, source = shown(fitted())
        assert "Flagged" not in texts
        assert 'role="alert"' not in source
        assert "The checks of DP-Laplace found nothing against this result." in texts
        assert "None" not in texts
        assert "200draws" in texts  # a tile: number and label
        assert "chains" not in texts

    def test_every_parameter_has_its_share_of_noise_as_a_number_and_a_bar(self):
        texts, source = shown(fitted())
        assert "privacy noise" in texts
        assert re.findall(r'style="--share: ([\d.]+)">([^<]+)<', source) == [
            ("0.000", "0 %"),
            ("0.600", "60 %"),
            ("0.050", "5 %"),
            ("0.000", "0 %"),
            ("0.100", "10 %"),
            ("0.100", "10 %"),
            ("0.333", "33 %"),
            ("0.300", "30 %"),
        ]

    def test_its_texts_are_escaped(self):
        evil = "<script>alert(1)</script>"
        quality = make_quality(method=evil, reasons=(evil,), notes=(evil,), prior_only=(evil,))
        for source in (shown(fitted(quality))[1], shown(fitted(make_quality(method=evil)))[1]):
            assert "<script" not in source

    def test_a_posterior_without_it_has_no_such_section(self):
        texts, _ = shown(make_posterior())
        assert "How far" not in texts
        assert report.trust(make_posterior()) == ""


class TestSections:
    """What a report shows beside the summary."""

    COURSE = (Spend("invalid_count", 1, 0.02), Spend("gradient", 40, 0.5))

    def headings(self, posterior):
        return re.findall(r"<h2>([^<]+)</h2>", html_report(posterior))

    def test_of_chains(self):
        assert self.headings(make_posterior("private", spending=self.COURSE)) == [
            "Parameters",
            "Summary",
            "Distributions",
            "Chains: R̂, ESS and traces",
            "What was spent and released",
            "How the budget was spent",
            "The privacy curve δ(ε)",
            "The ledger: all runs on these data",
            "The privacy statement",
        ]

    def test_of_independent_draws_there_are_no_traces(self):
        texts, source = shown(fitted())
        assert "There are none. The draws are independent" in texts
        assert 'class="chain' not in source
        assert "How the budget was spent" not in texts  # an earlier file knows nothing of it

    def test_what_auto_chose(self):
        posterior = fitted(make_quality(method="auto: a Gaussian (DP-Laplace)"), sampler="auto")
        assert self.headings(posterior)[0] == "What auto chose, and how far to trust this"
        assert "auto: a Gaussian (DP-Laplace) converged in 7 rounds" in shown(posterior)[0]

    def test_without_a_budget_there_is_no_curve(self):
        assert "The privacy curve δ(ε)" not in self.headings(make_posterior("noise-free"))
        texts, _ = shown(make_posterior("seeded"))
        assert "What was accounted for. It is not a guarantee" in texts
        assert "Every point of the curve holds" not in texts

    def test_the_diagnostics_name_the_worst(self):
        posterior = make_posterior("private")
        table = posterior.summary(round_to="none")
        worst = table["r_hat"].idxmax()
        texts, _ = shown(posterior)
        assert f"the largest R̂ is {table['r_hat'].max():.3f} ({worst})" in texts
        assert f"the smallest ESS is {table['ess_bulk'].min():,.0f} ({table['ess_bulk'].idxmin()})" in texts

    def test_the_course_has_its_numbers(self):
        texts, source = shown(make_posterior("private", spending=self.COURSE))
        assert "50 % was not used" in texts
        cells = re.findall(r"<tr><th scope=\"row\">(gradient)</th><td>40</td><td>48 %</td><td>50 %</td>", source)
        assert cells == ["gradient"]

    def test_a_ledger_is_drawn_or_said_to_be_missing(self):
        alone, _ = shown(make_posterior("private"))
        assert "No ledger was used: this run stands alone" in alone
        known = replace(STATEMENTS["private"], ledger=ledger(name="<clinic>"))
        texts, source = shown(make_posterior(privacy=known))
        assert "Run 2 of the ledger “<clinic>”" in texts
        assert "stands alone" not in texts
        assert "earlier runs 28.6 %, this run" in source
        assert "ε set apart" not in texts

    def test_the_whole_statement_is_there(self):
        posterior = make_posterior("private")
        texts, _ = shown(posterior)
        for section in posterior.privacy.sections():
            for text in (section.heading, *section.paragraphs, *section.items):
                assert " ".join(text.split()) in texts

    def test_many_parameters_have_intervals_and_a_few_are_drawn(self):
        draws = np.random.default_rng(2).normal(size=(2, 40, 60))
        plain = {"warmup_draws": {}, "sample_stats": {}, "warmup_stats": {}, "dims": {}, "coords": {}}
        texts, source = shown(make_posterior("private", draws={"w": draws}, **plain))
        assert texts.count("The first 12 of 60 parameters are drawn.") == 2
        assert len(re.findall(r'class="bar private"', source)) == 60
        assert len(re.findall(r'aria-label="Density of', source)) == 12
        assert len(source) < 600_000

    def test_coefficients_are_in_the_data_units(self):
        schema = Schema([Field("age", "number", minimum=0, maximum=100), Field("y", "string", levels=["no", "yes"])])
        design = Design("y ~ age", schema)
        draws = {
            "intercept": np.random.default_rng(1).normal(size=(2, 100)),
            "coefficients": np.random.default_rng(2).normal(5.0, 0.1, size=(2, 100, 1)),
        }
        plain = {"warmup_draws": {}, "sample_stats": {}, "warmup_stats": {}}
        labels = {"dims": {"coefficients": ["feature"]}, "coords": {"feature": list(design.columns)}}
        texts, _ = shown(make_posterior("private", draws=draws, design=design, **plain, **labels))
        assert "Coefficients" in texts
        assert "y ~ age" in texts
        assert re.search(r"age0\.\d+ \(0\.09\d* to 0\.10\d*\)", texts)  # 5 for half of the range, 50 years


@pytest.mark.parametrize(
    "values",
    [np.full((2, 10), np.nan), np.full((1, 1), 2.0), np.full((3, 9), 1e308), np.array([[np.inf, 1.0, -np.inf, 0.0]])],
)
def test_odd_draws_have_a_page(values):
    plain = {"warmup_draws": {}, "sample_stats": {}, "warmup_stats": {}, "dims": {}, "coords": {}}
    texts, _ = shown(make_posterior("private", draws={"w": values, "v": np.zeros_like(values)}, **plain))
    assert "The privacy statement" in texts
    assert "nan" not in texts.split()


def test_texts_are_escaped():
    evil = "<script>alert('$title & co')</script>"
    draws = {evil: np.random.default_rng(1).normal(size=(4, 50))}
    plain = {"warmup_draws": {}, "warmup_stats": {}, "dims": {}, "coords": {}}
    posterior = make_posterior(draws=draws, model=evil, **plain)
    for options in ({}, {"title": evil, "lead": evil, "pictures": [Picture("one", SVG, evil, evil)]}):
        texts, source = shown(posterior, **options)
        assert evil in texts
        assert "<script" not in source
    assert "<script" not in report.html_page(posterior, [], title=evil, footer=evil)
    for part in (report.heading, report.paragraph, report.code):
        assert "<script" not in part(evil)


def test_svg_is_inside_with_names_and_colours_of_the_page():
    _, source = shown(make_posterior(), pictures=[picture("one"), picture("two", wide=True)])
    page = Page(source)
    assert page.ids == ["one-a", "two-a"]
    assert page.links == ["#one-a", "#two-a"]
    drawing = source[source.index("<figure") : source.index("</figure>")]
    assert drawing.startswith('<figure class="narrow"><svg role="img" aria-label="A &lt;label&gt;"><defs>')
    assert "clip-path: url(#one-a); fill: var(--private)" in drawing
    assert "Below &amp; beside" in drawing
    assert "<figure><svg" in source


def test_png_is_inside():
    _, source = shown(make_posterior(), pictures=[picture(content=PNG)])
    assert [link[:22] for link in Page(source).links] == ["data:image/png;base64,"]


def test_other_pictures_are_refused():
    with pytest.raises(ResultError, match="'one' is neither SVG nor PNG"):
        html_report(make_posterior(), pictures=[picture(content=b"GIF89a")])


class TestIntervals:
    ROWS = (
        report.IntervalRow("a<b", private=(-1.0, 0.0, 1.0), exact=(-0.5, 0.0, 0.5)),
        report.IntervalRow("c", private=(2.0, 2.5, 3.0), exact=(2.2, 2.4, 2.6)),
    )

    def drawn(self, rows=ROWS):
        text = report.intervals(rows, private="private & so", exact="exact", caption="what <it> is")
        return text, " ".join(" ".join(Page(text).texts).split())

    def test_all_bars_share_one_axis(self):
        text, words = self.drawn()
        bars = re.findall(r'class="bar (\w+)" style="left: ([\d.]+)%; width: ([\d.]+)%"', text)
        low, high = -1.0 - 0.03 * 4.0, 3.0 + 0.03 * 4.0
        for (kind, left, width), (start, end) in zip(bars, [(-1, 1), (-0.5, 0.5), (2, 3), (2.2, 2.6)], strict=True):
            assert float(left) == pytest.approx(100 * (start - low) / (high - low), abs=0.01)
            assert float(width) == pytest.approx(100 * (end - start) / (high - low), abs=0.01)
            assert kind in ("private", "exact")
        assert "a<b" in words
        assert "what <it> is" in words
        assert "private &amp; so: −1 to 1; exact: −0.5 to 0.5" in text

    @pytest.mark.parametrize("scale", [1e-9, 1.0, 3.0, 1e9])
    def test_ticks_are_a_few_round_numbers(self, scale):
        ticks = report._ticks(-1.1 * scale, 2.9 * scale)
        assert 3 <= len(ticks) <= 9
        assert all(-1.1 * scale <= tick <= 2.9 * scale for tick in ticks)

    def test_intervals_without_width(self):
        zero = report.IntervalRow("none", private=(0.0, 0.0, 0.0), exact=(0.0, 0.0, 0.0))
        assert "nan" not in self.drawn([zero])[0]
