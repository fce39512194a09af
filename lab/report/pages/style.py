"""The style of the page; its colours are those of watcher/web/style.css."""

STYLE = """
:root { color-scheme: light dark;
  --page: #f5f6f8; --card: #fff; --line: #d9dee5; --ink: #1a212a; --quiet: #56616e; --accent: #1b5fbe; --bad: #b3261e;
  --mean: #1b5fbe; --peak: #a9c6ea; --none: #fff; --h0: #e6eaef; --h1: #cfdff5; --h2: #a3c3ec; --h3: #6f9fdc;
  --h4: #f2c46d; --h5: #dd7f3b; --h6: #b3261e; --requested: #b2560d; --bound: #6a3fb5; }
@media (prefers-color-scheme: dark) { :root {
  --page: #11151a; --card: #191f26; --line: #2d3640; --ink: #e6ebf0; --quiet: #9ba7b3;
  --accent: #82b4f6;
  --bad: #f28b82;
  --mean: #82b4f6; --peak: #35537a; --none: #191f26; --h0: #29313a; --h1: #24405f; --h2: #2d5c8f; --h3: #4584c8;
  --h4: #a87a20; --h5: #d9803c; --h6: #f28b82; --requested: #f0a35e; --bound: #b99bf2; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 1rem; }
h1, h2, h3, p, dl, dd, figure { margin: 0; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; } h3 { font-size: .95rem; margin-top: .8rem; }
p, figcaption, dd, code { overflow-wrap: anywhere; }
.quiet, figcaption { color: var(--quiet); font-size: .87rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .8rem 1rem;
  margin-top: 1rem; }
.card > * + * { margin-top: .6rem; }
.finding { font-size: 1.1rem; font-weight: 600; }
.scroll { overflow-x: auto; max-width: 40rem; } .wide { max-width: none; } .wide svg { min-width: 40rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font-size: 10px; } svg .end { text-anchor: end; }
.none { fill: var(--none); stroke: var(--line); stroke-width: .5; }
.h0 { fill: var(--h0); } .h1 { fill: var(--h1); } .h2 { fill: var(--h2); } .h3 { fill: var(--h3); }
.h4 { fill: var(--h4); } .h5 { fill: var(--h5); } .h6 { fill: var(--h6); }
.mean { fill: var(--mean); } .peak { fill: var(--peak); } .bound { fill: var(--bound); }
.requested { fill: var(--requested); } .dot { fill: var(--accent); }
.grid { stroke: var(--line); } .interval { stroke: var(--accent); stroke-width: 2; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .85rem; color: var(--quiet); }
.legend span { display: inline-flex; gap: .35rem; align-items: center; }
.key { width: .8rem; height: .8rem; flex: none; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; }
th, td { text-align: right; padding: .3rem .5rem; border-top: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere; }
th:first-child { text-align: left; padding-left: 0; } th[scope="row"] { font-weight: 500; }
thead th { color: var(--quiet); font-weight: 500; font-size: .85rem; border-top: 0; vertical-align: bottom; }
dt { margin-top: .4rem; } dd { color: var(--quiet); } code { font: 13px ui-monospace, Menlo, Consolas, monospace; }
@media (max-width: 640px) {
  main { padding: .6rem; } thead { display: none; } table, tbody, tr, th, td, caption { display: block; }
  tr { border-top: 1px solid var(--line); padding: .3rem 0; } th, td { border: 0; padding: .05rem 0; }
  td { display: flex; justify-content: space-between; gap: 1rem; } td::before { content: attr(data-label);
    color: var(--quiet); text-align: left; flex: none; } }
@media print { :root { --page: #fff; --card: #fff; } body { font-size: 12px; } main { max-width: none; padding: 0; }
  figure, tr { break-inside: avoid; } .card { border: 0; padding: 0; } .wide svg { min-width: 0; }
  rect, line, circle { print-color-adjust: exact; } }
""".strip()
