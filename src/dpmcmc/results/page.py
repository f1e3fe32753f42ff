"""The frame and the style of a page, with places for its texts: light and dark, wide and narrow, on paper.

A string template; `report.html_page` fills it in.
"""

__all__ = ["PAGE"]

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title · dpmcmc</title>
<style>
:root { color-scheme: light dark; --paper: #ffffff; --panel: #f6f8fa; --ink: #1b1f24; --muted: #59636e; --line: #d0d7de;
  --private: #0072b2; --exact: #e69f00; --good: #00664a; --bad: #b3261e; --bad-panel: #fdecea;
  --second: #d55e00; --third: #009e73; --fourth: #a8478a; }
@media (prefers-color-scheme: dark) { :root { --paper: #0f1419; --panel: #171d24; --ink: #e6edf3; --muted: #9aa7b4;
  --line: #303a45; --private: #6cc3f5; --exact: #e69f00; --good: #4fd1a5; --bad: #ff8a80; --bad-panel: #3a1512;
  --second: #ff9a52; --third: #4fd1a5; --fourth: #e79cc7; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.01em;
  overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
p, ul { margin: .5rem 0; max-width: 46rem; overflow-wrap: break-word; }
ul { padding-left: 1.25rem; }
li { margin: .25rem 0; }
.unbroken { white-space: nowrap; }
.strong { font-weight: 600; }
.lead { overflow-wrap: anywhere; font-size: 1.08rem; color: var(--muted); }
.badge { color: var(--good); font-weight: 600; }
.flag { color: var(--bad); font-weight: 600; }
.warning { max-width: none; color: var(--bad); background: var(--bad-panel); border-left: 4px solid var(--bad);
  padding: .75rem 1rem; }
.note { border-left: 4px solid var(--exact); padding: .1rem 0 .1rem 1rem; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.4rem, 1fr)); gap: .75rem; margin: 1.5rem 0; }
dl div { background: var(--panel); border-radius: .5rem; padding: .7rem .9rem; display: flex; flex-direction: column; }
dd { margin: 0; white-space: nowrap; font-size: 1.25rem; font-weight: 600; font-variant-numeric: tabular-nums; }
dt { color: var(--muted); font-size: .85rem; }
figure { margin: 1.5rem 0; }
figure svg, figure img { display: block; width: 100%; height: auto; }
figure.narrow svg, figure.narrow img { max-width: 46rem; margin: 0 auto; }
figcaption { color: var(--muted); font-size: .92rem; margin-top: .5rem; max-width: 46rem; }
figure.narrow figcaption { margin-left: auto; margin-right: auto; }
.intervals .legend { display: flex; flex-wrap: wrap; gap: .2rem 1.5rem; font-size: .92rem; margin-bottom: .75rem; }
.intervals .legend i { display: inline-block; width: 1.6rem; height: .5rem; border-radius: .25rem; margin-right: .5rem;
  vertical-align: middle; }
.intervals .row { display: grid; grid-template-columns: 15rem 1fr; gap: .75rem; align-items: center; }
.intervals .name { font-size: .92rem; overflow-wrap: anywhere; }
.intervals .track { position: relative; display: block; height: 2.1rem; border-bottom: 1px solid var(--line);
  background: linear-gradient(var(--muted), var(--muted)) no-repeat var(--zero, -9rem) 0 / 1px 100%; }
.intervals .bar { position: absolute; height: .5rem; border-radius: .25rem; min-width: 2px; }
.intervals .dot { position: absolute; width: 2px; height: .9rem; margin-left: -1px; background: var(--ink); }
.intervals .private { background-color: var(--private); }
.intervals .exact { background-color: var(--exact); }
.intervals .bar.private { top: .4rem; } .intervals .dot.private { top: .2rem; background: var(--ink); }
.intervals .bar.exact { top: 1.25rem; } .intervals .dot.exact { top: 1.05rem; background: var(--ink); }
.intervals .ticks .track { height: 1.5rem; border: 0; font-size: .82rem; color: var(--muted); }
.intervals .ticks .track span { position: absolute; top: .2rem; transform: translateX(-50%); }
.intervals.single { margin-bottom: 1rem; }
.intervals.single .row { grid-template-columns: 13rem 1fr 13.5rem; }
.intervals.single .track { height: 1.6rem; }
.intervals.single .bar.private { top: .55rem; } .intervals.single .dot.private { top: .35rem; }
.intervals.single .words { font-size: .85rem; color: var(--muted); font-variant-numeric: tabular-nums; }
.intervals.single .ticks .track { height: 1.5rem; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(17rem, 100%), 1fr)); gap: .5rem 1.25rem; }
.grid figure { margin: .5rem 0; min-width: 0; }
figure.small { display: flex; flex-direction: column; }
figure.small figcaption { order: -1; margin: 0 0 .15rem; color: var(--ink); font-weight: 500; overflow-wrap: anywhere; }
figure.narrow svg.chart { max-width: 30rem; margin: 0; }
figure.narrow svg.chart + figcaption { margin-left: 0; }
.chart text { font: 11.5px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  fill: var(--muted); font-variant-numeric: tabular-nums; }
.chart .strong { fill: var(--ink); font-weight: 600; }
.chart path { fill: none; }
.chart .axis { stroke: var(--muted); stroke-width: 1; }
.chart .rule { stroke: var(--line); stroke-width: 1; }
.chart .zero { stroke: var(--muted); stroke-width: 1; stroke-dasharray: 3 3; }
.chart .middle { stroke: var(--ink); stroke-width: 1.5; }
.chart .stroke { stroke: var(--private); stroke-width: 1.75; stroke-linejoin: round; }
.chart .soft { fill: var(--private); opacity: .16; }
.chart .filled { fill: var(--private); opacity: .34; }
.chart .stated { fill: var(--exact); stroke: var(--ink); stroke-width: 1.5; }
.chart .chain { stroke-width: .9; opacity: .85; stroke-linejoin: round; }
.chart .chain-1 { stroke: var(--private); } .chart .chain-2 { stroke: var(--second); }
.chart .chain-3 { stroke: var(--third); } .chart .chain-4 { stroke: var(--fourth); }
.chart .bars { stroke: none; opacity: .8; }
.chart .bars.chain-1 { fill: var(--private); } .chart .bars.chain-2 { fill: var(--second); }
.chart .bars.chain-3 { fill: var(--third); } .chart .bars.chain-4 { fill: var(--fourth); }
.ledger { max-width: 46rem; }
.ledger .total { display: flex; height: 1.5rem; border: 1px solid var(--line); border-radius: .35rem;
  overflow: hidden; }
.ledger .total span { display: block; }
.ledger .legend { display: flex; flex-wrap: wrap; gap: .2rem 1.5rem; font-size: .92rem; margin-top: .5rem; }
.ledger .legend i { display: inline-block; width: 1rem; height: .8rem; border-radius: .2rem; margin-right: .5rem;
  vertical-align: -1px; border: 1px solid var(--line); }
.ledger .earlier { background: var(--muted); } .ledger .own { background: var(--private); }
.ledger .left { background: var(--panel); }
details { margin: .75rem 0; }
summary { cursor: pointer; color: var(--muted); }
.scroll { overflow-x: auto; }
:focus-visible { outline: 2px solid var(--private); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { padding: .4rem .7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { color: var(--muted); font-weight: 500; border-bottom: 1.5px solid var(--muted); }
tbody th { font-weight: 500; white-space: nowrap; }
.numbers th:not(:first-child), .numbers td { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.numbers tbody th { white-space: normal; overflow-wrap: anywhere; min-width: 8rem; }
.numbers .share { min-width: 10.5rem; background: linear-gradient(var(--private), var(--private)) no-repeat .9rem 50% /
  calc(var(--share) * 5.5rem) .6rem, linear-gradient(var(--line), var(--line)) no-repeat .9rem 50% / 5.5rem .6rem; }
.numbers thead th { white-space: normal !important; }
.statement th { color: var(--muted); width: 16rem; }
pre { background: var(--panel); border-radius: .5rem; padding: 1rem; overflow-x: auto; font-size: .84rem;
  line-height: 1.5; }
footer { margin-top: 3rem; color: var(--muted); font-size: .85rem; }
@media (max-width: 40rem) { main { padding: 1.5rem 1rem 3rem; } h1 { font-size: 1.55rem; }
  .intervals .row { grid-template-columns: 1fr; gap: 0; margin-top: .35rem; }
  .intervals.single .row { grid-template-columns: 1fr auto; gap: 0 .75rem; align-items: baseline; }
  .intervals.single .track { grid-column: 1 / -1; grid-row: 2; height: 1.4rem; }
  .intervals.single .words { text-align: right; }
  .intervals.single .ticks .track { grid-row: 1; }
  .intervals.single .ticks .name, .intervals.single .ticks .words { display: none; }
  .statement th { width: 30%; white-space: normal; overflow-wrap: anywhere; }
  .numbers th, .numbers td { padding: .35rem .45rem; } }
@media print { .intervals * { print-color-adjust: exact; } main { padding: 0; } figure, table { break-inside: avoid; } }
</style>
</head>
<body>
<main>
<h1>$title</h1>
<p class="lead">$lead</p>
$banner
<dl>$tiles</dl>
$parts
<footer>$footer</footer>
</main>
</body>
</html>
"""
