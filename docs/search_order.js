// How results of the site's search are ordered: Sphinx's own numbers, with decisions, the changelog and contributors' pages last.
var Scorer = {
  score: ([page, title, anchor, description, score]) =>
    /^(decisions\/|architecture|changelog|reference\/conformance|reliability|writing-)/.test(page) ? score - 100 : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
