#include "tools/report/page.h"

namespace lockstep::tools {

// c: a stroke's colour, f: the same as a fill, d: dashes, p: the parts of a step.
std::string_view page_style() {
  return R"css(
:root{--page:#fff;--ink:#1c2330;--soft:#596273;--rule:#d9dee6;--ground:#f4f6f9;--warn:#8a4b00;--heat:#b5274a;
--c0:#1f6fb4;--c1:#c2571a;--c2:#2a7f4f;--c3:#8a4fa3;--c4:#b5274a;--c5:#6b6b00;--c6:#007b8a;--c7:#7a5230;
--p0:#8a4fa3;--p1:#1f6fb4;--p2:#4d9ad6;--p3:#3585c5;--p4:#2a7f4f;--p5:#c7364f;--p6:#e08a3c;--p7:#8b95a3}
@media screen and (prefers-color-scheme:dark){:root{--page:#12161c;--ink:#e3e7ee;--soft:#9aa4b3;--rule:#313945;
--ground:#1b212a;--warn:#f0b35f;--heat:#f2849b;
--c0:#6db3f2;--c1:#f0a060;--c2:#6fcf97;--c3:#c79be0;--c4:#f2849b;--c5:#cfcf5a;--c6:#5cd0de;--c7:#d1a67d;
--p0:#c79be0;--p1:#5aa5ea;--p2:#2f6ea8;--p3:#4489c9;--p4:#6fcf97;--p5:#ef6f86;--p6:#f0a060;--p7:#7b8696}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.45 system-ui,sans-serif}
main,footer{max-width:84rem;margin:0 auto;padding:0 1.25rem}
footer{color:var(--soft);font-size:.85rem;padding-bottom:1.5rem}
h1{font-size:1.45rem;margin:1.25rem 0 .75rem;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2rem 0 .5rem;padding-bottom:.25rem;border-bottom:1px solid var(--rule)}
h3{font-size:1rem;margin:1.25rem 0 .5rem;overflow-wrap:anywhere}
p{margin:.5rem 0;max-width:60rem}
.none,.scale{color:var(--soft);font-size:.9rem;overflow-wrap:anywhere}
.warn{color:var(--warn);overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(28rem,100%),1fr));gap:.75rem 1.75rem}
figure{margin:.5rem 0;min-width:0;max-width:44rem;container-type:inline-size}
figcaption{font-weight:600;font-size:.95rem;margin-bottom:.25rem;overflow-wrap:anywhere}
svg{display:block;width:100%;height:auto}
svg text{font:11px system-ui,sans-serif;fill:var(--soft)}
@container (max-width:560px){svg{overflow:visible}svg text{font-size:17px}svg text.odd{display:none}}
@container (max-width:330px){svg text{font-size:21px}}
svg.key{display:inline-block;width:26px;height:8px;margin-right:.4rem;vertical-align:middle}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem 1rem;margin:.25rem 0;padding:0;font-size:.85rem}
.legend li{overflow-wrap:anywhere;min-width:0}
path.grid{stroke:var(--rule);stroke-width:1;fill:none}
path.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
path.c0{stroke:var(--c0)}path.c1{stroke:var(--c1)}path.c2{stroke:var(--c2)}path.c3{stroke:var(--c3)}
path.c4{stroke:var(--c4)}path.c5{stroke:var(--c5)}path.c6{stroke:var(--c6)}path.c7{stroke:var(--c7)}
.f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}
.f4{fill:var(--c4)}.f5{fill:var(--c5)}.f6{fill:var(--c6)}.f7{fill:var(--c7)}
.d1{stroke-dasharray:6 4}.d2{stroke-dasharray:2 4}.d3{stroke-dasharray:9 3 2 3}
.p0{fill:var(--p0)}.p1{fill:var(--p1)}.p2{fill:var(--p2)}.p3{fill:var(--p3)}.p4{fill:var(--p4)}.p5{fill:var(--p5)}
.p6{fill:var(--p6)}.p7{fill:var(--p7)}
rect.part{stroke:var(--page);stroke-width:1}
.ground{fill:var(--ground)}.heat{fill:var(--heat)}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem;margin:.5rem 0}
caption{text-align:left;color:var(--soft);padding:.2rem 0}
th,td{text-align:left;vertical-align:top;padding:.25rem .9rem .25rem 0;border-bottom:1px solid var(--rule)}
th{font-weight:600}tbody th{font-weight:400}thead th{white-space:nowrap;color:var(--soft)}
td{overflow-wrap:anywhere;min-width:4rem}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
thead th.n{white-space:normal;vertical-align:bottom}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--ground);padding:.6rem .8rem;margin:.5rem 0;
font:13px/1.4 ui-monospace,monospace}
@media print{body{font-size:10.5pt}main,footer{max-width:none;padding:0}h2,h3{break-after:avoid}
figure,tr{break-inside:avoid}.wide{overflow:visible}svg *{print-color-adjust:exact}
.charts{grid-template-columns:1fr 1fr}}
)css";
}

}  // namespace lockstep::tools
