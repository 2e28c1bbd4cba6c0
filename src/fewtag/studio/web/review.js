// Review: one label, one question, a page of pictures answered at once.
import * as api from "./api.js";
import { Cursor, Grid, countOf } from "./grid.js";
import { useKeys } from "./keys.js";
import { percent, plural } from "./library.js";
import * as store from "./store.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useSignal } from "./view.js";

const ORDERS = [
  ["unsure", "Unsure", "Nearest the threshold: each answer teaches most"],
  ["sure", "Sure", "Most likely first: confirm by the page"],
  ["missed", "Missed?", "Best of what is not tagged"],
  ["audit", "Audit", "At random: measures how right the tags are"],
];
const MARKS = { yes: "✓", no: "✗", unknown: "?" };

/** @typedef {import("./api.js").Verdict} Verdict */

/** What a person changed on the page: kept while one looks at a picture, until the page is answered. @type {Map<string, Record<string, Verdict>>} */
const changes = new Map();

export function Review() {
  const { name: label, query } = store.route.value;
  const order = query.get("order") ?? "auto";
  const area = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const page = useSignal(/** @type {api.ReviewPage | null} */ (null));
  /** What this page's pictures will be answered, by digest. */
  const verdicts = useSignal(/** @type {Record<string, Verdict>} */ ({}));
  const busy = useSignal(false);
  const unknown = useSignal(false);
  const cursor = useMemo(() => new Cursor(), [label]);
  const asked = useRef(0);

  /** @param {string} sentence */
  const refused = async (sentence) => {
    await store.loadLabels();
    if (store.parseRoute(location.hash).name !== label) return; // one went elsewhere meanwhile
    if (store.labelNames.value.includes(label)) store.say(sentence, { bad: true });
    else if (page.value) store.go("library"); // its making was taken back
    else unknown.value = true;
  };
  /** Whether this label is still asked about. */
  const here = () => Boolean(area.current) && store.route.value.screen === "review" && store.route.value.name === label;
  const load = async () => {
    const turn = ++asked.current;
    // as many as one sees at once, so that Enter answers nothing unseen
    const size = countOf(/** @type {HTMLElement} */ (area.current));
    const got = await store.attempt(() => api.getReview(label, order, size), refused);
    if (turn !== asked.current || !got) return false;
    if (got.label !== label) return void location.replace(store.address("review", got.label, { order: query.get("order") ?? "" })); // renamed
    store.seeShapes(got.pictures);
    page.value = got;
    unknown.value = false;
    verdicts.value = Object.fromEntries(got.pictures.map((cell) => [cell.digest, changes.get(label)?.[cell.digest] ?? (cell.marked ? "yes" : "no")]));
    return true;
  };
  useLayoutEffect(() => {
    page.value = null;
    unknown.value = false;
    area.current?.closest("main")?.scrollTo(0, 0);
    // the focus leaves the link that led here, which Enter would follow again
    load().then((came) => came && cursor.set(0));
  }, [label, order]);
  // an undo, or answers from elsewhere: another tab, a telephone, an assistant
  useEffect(() => {
    if (busy.value || store.unsent.value.length) return;
    if (page.value ? store.version.value > page.value.version : unknown.value) load();
  }, [store.version.value, busy.value, store.unsent.value.length]);
  useEffect(() => void (store.returns.value && !page.value && load()), [store.returns.value]);

  // what each example does is worked out behind the page
  const waits = !page.value?.settled && (page.value?.examples.some((each) => each.influence === null) ?? false);
  useEffect(() => {
    if (!waits) return;
    const turn = asked.current;
    const later = setTimeout(async () => {
      const got = await api.getReview(label, order, 1).catch(() => null);
      if (got && page.value && turn === asked.current) page.value = { ...page.value, examples: got.examples, settled: got.settled };
    }, 2500);
    return () => clearTimeout(later);
  }, [page.value?.examples]);

  /** @param {string} digest @param {Verdict} [verdict] */
  const give = (digest, verdict) => {
    const given = verdict ?? (verdicts.value[digest] === "yes" ? "no" : "yes");
    verdicts.value = { ...verdicts.value, [digest]: given };
    changes.set(label, { ...changes.get(label), [digest]: given });
  };
  const answerPage = async () => {
    const shown = page.value;
    if (!shown?.pictures.length || busy.value || store.unsent.value.length) return;
    busy.value = true;
    const touched = changes.get(label) ?? {};
    const given = shown.pictures.map((cell) => ({ picture: cell.digest, label, answer: verdicts.value[cell.digest], stack: cell.stack > 1 && shown.order !== "audit", marked: !(cell.digest in touched) }));
    const gesture = store.answer(given, shown.order === "audit" ? "audit" : "page");
    // where the studio is away or its disk is full this takes as long as that; what was marked stays until it is taken
    const taken = await gesture.taken;
    if (taken) changes.delete(label);
    if (taken && here()) await load();
    busy.value = false;
    if (!taken) return;
    const said = given.length > 1 ? count(given.map((each) => each.answer)) : given[0].answer;
    const stacks = gesture.pictures > given.length ? `, ${plural(gesture.pictures)} with their stacks` : "";
    if (!gesture.undone) store.say(`Answered: ${said}${stacks}.`, { action: { text: "Undo", run: () => store.takeBack(gesture) } });
    if (!here()) return;
    store.announcement.value = `${plural(page.value?.left ?? 0)} left.`;
    cursor.set(0);
  };
  /** @param {Verdict} verdict */
  const giveHere = (verdict) => {
    const cell = page.value?.pictures[cursor.place.value];
    if (!cell || busy.value) return;
    give(cell.digest, verdict);
    if (alone) answerPage();
    else cursor.move(1);
  };
  /** @param {number} place */
  const open = (place) => {
    const pictures = page.value?.pictures ?? [];
    if (!pictures[place]) return;
    store.walk.value = { at: (step) => pictures[step]?.digest, need: undefined, total: pictures.length, place, back: location.hash, top: 0 };
    store.go("picture", pictures[place].digest, { label });
  };
  const shown = page.value;
  const alone = shown?.pictures.length === 1;
  useKeys([
    { keys: ["Enter"], says: alone ? "Open the picture" : "Answer the whole page", run: () => (alone ? open(0) : answerPage()) },
    { keys: ["a"], says: "Yes, it is there", run: () => giveHere("yes") },
    { keys: ["x"], says: "No, it is not", run: () => giveHere("no") },
    { keys: ["Space"], says: "Cannot tell: skip it (it is not asked again)", run: () => giveHere("unknown") },
    ...cursor.keys(),
    { keys: ["o"], says: "Open the chosen picture", run: () => open(cursor.place.value) },
    { keys: ["["], says: "Lower the threshold", run: () => step(-1) },
    { keys: ["]"], says: "Raise the threshold", run: () => step(1) },
    { keys: ["g"], says: "More like this picture", run: () => store.go("library", "", { like: page.value?.pictures[cursor.place.value]?.digest }) },
    { keys: ["n"], says: "New label by its name", run: () => store.ask("new") },
    { keys: ["Escape"], says: "Back to the library", run: () => store.find(store.quoted(label)) },
  ]);

  /** @param {api.Cell} cell @returns {import("./grid.js").Look} */
  const look = (cell) => {
    const verdict = verdicts.value[cell.digest] ?? "no";
    // a question about one picture has no answer before it is given
    if (alone) return { name: `${cell.name}${cell.p === null ? "" : `, ${percent(cell.p)}`}`, caption: cell.p !== null && html`<span class="p">${percent(cell.p)}</span>` };
    return {
      pressed: verdict === "yes",
      kind: verdict,
      mark: MARKS[verdict],
      name: `${cell.name}: ${verdict}${cell.p === null ? "" : `, ${percent(cell.p)}`}`,
      caption: html`<span class=${`said ${verdict}`}>${verdict}</span>${cell.p !== null && html`<span class="p">${percent(cell.p)}</span>`}`,
    };
  };
  /** @param {number} steps */
  const step = (steps) => shift(label, page, steps);
  return html`<main class="review">
    <section class="question">
      <header class="heading">
        <h1>${shown?.question ?? html`<span class="dim">${label}</span>`}</h1>
        ${!unknown.value && html`<button class="plain" aria-label=${`Rename, merge or delete ${label}`} title="Rename, merge or delete" onClick=${() => store.ask("label", label)}>⋯</button>
        <span class="space"></span>
        <nav class="orders" aria-label="Order of questions">
          ${ORDERS.map(([key, text, title]) => html`<a href=${store.address("review", label, { order: key })} title=${title}
            aria-current=${(shown?.order ?? order) === key ? "true" : "false"}>${text}</a>`)}
        </nav>`}
      </header>
      <div class="area" ref=${area} aria-busy=${busy.value}>
        ${unknown.value
          ? html`<div class="nothing"><h2>There is no label “${label}”</h2><p>It was renamed or deleted, or never made. <a href="#/">See all pictures</a>,
              or <button onClick=${() => store.ask("new", label)}>make it a label</button></p></div>`
          : shown && !shown.pictures.length
          ? html`<${Finished} label=${label} />`
          : html`<${Grid} label=${shown?.question ?? label} total=${shown?.pictures.length ?? 0} at=${(/** @type {number} */ place) => shown?.pictures[place]}
              cursor=${cursor} look=${look} onOpen=${open}
              onPress=${(/** @type {number} */ place) => {
                cursor.set(place);
                if (!alone) give(/** @type {api.ReviewPage} */ (shown).pictures[place].digest);
              }} />`}
      </div>
      ${shown && shown.pictures.length > 0 && html`<footer class="bar fixed">
        <span class="counts">${!alone && count(Object.values(verdicts.value))}</span>
        <button disabled=${busy.value} aria-label="Unknown" title="Cannot tell: skip the chosen picture (Space)" onClick=${() => giveHere("unknown")}>?</button>
        ${!alone
          ? html`<button class="primary" disabled=${busy.value} onClick=${answerPage}>Answer the page<kbd>⏎</kbd></button>`
          : html`<button disabled=${busy.value} onClick=${() => giveHere("no")}>✗ No<kbd>x</kbd></button>
              <button class="primary" disabled=${busy.value} onClick=${() => giveHere("yes")}>✓ Yes<kbd>a</kbd></button>`}
        <span class="left">${store.number(Math.max(shown.left, shown.pictures.length))} left</span>
      </footer>`}
    </section>
    <aside class="rail" aria-label=${`About ${label}`}>${shown && html`<${Rail} page=${shown} change=${(/** @type {number | null} */ to) => settle(label, page, to)} />`}</aside>
  </main>`;
}

/** @param {string[]} verdicts */
function count(verdicts) {
  const each = ["yes", "no", "unknown"].map((verdict) => [verdicts.filter((given) => given === verdict).length, verdict]);
  return each.filter(([many]) => many).map((part) => part.join(" ")).join(" · ");
}

/** The point of the curve nearest to a threshold. @param {api.Point[]} curve @param {number} threshold */
const nearest = (curve, threshold) =>
  curve.reduce((best, point) => (Math.abs(point.threshold - threshold) < Math.abs(best.threshold - threshold) ? point : best), curve[0]);

/** @param {string} label @param {import("./view.js").Signal<api.ReviewPage | null>} page @param {number | null} to */
async function setThreshold(label, page, to) {
  const row = await store.attempt(() => api.change(label, { threshold: to }));
  show(label, page, (row ?? store.labels.value?.find((each) => each.name === label))?.threshold);
  if (!row) return;
  store.sayChange(to === null ? "The threshold is the model's own again." : `“${label}” from ${percent(to)} on.`, row.undo);
}

/** @param {string} label @param {import("./view.js").Signal<api.ReviewPage | null>} page @param {number | null | undefined} threshold */
function show(label, page, threshold) {
  if (page.value?.label === label && threshold != null) page.value = { ...page.value, threshold };
}

/** Told to the server once keys and slider rest. @param {string} label @param {import("./view.js").Signal<api.ReviewPage | null>} page @param {number | null} to */
function settle(label, page, to) {
  const before = page.value?.threshold;
  show(label, page, to);
  store.rest(`threshold of ${label}`, () => setThreshold(label, page, to), () => show(label, page, before));
}

/** Moves the threshold by points. @param {string} label @param {import("./view.js").Signal<api.ReviewPage | null>} page @param {number} steps */
const shift = (label, page, steps) =>
  page.value && settle(label, page, Math.min(0.99, Math.max(0.01, Math.round(page.value.threshold * 100 + 2 * steps) / 100)));

/** @param {{label: string}} props */
function Finished({ label }) {
  if (!store.project.value?.indexed) return html`<div class="nothing"><h2>No pictures yet</h2><p>As soon as there are some, they are asked about here.</p></div>`;
  return html`<div class="nothing">
    <h2>Nothing left to ask here</h2>
    <p>Every picture of this order is answered. Choose another order above, or see <a href=${store.address("library", "", { q: store.quoted(label) })}>all that is tagged “${label}”</a>.</p>
  </div>`;
}

/** What is known of the label. @param {{page: api.ReviewPage, change: (to: number | null) => void}} props */
function Rail({ page, change }) {
  const dragged = useSignal(/** @type {number | null} */ (null));
  const threshold = dragged.value ?? page.threshold;
  const point = page.curve.length ? nearest(page.curve, threshold) : null;
  const audited = page.audited;
  /** @param {number} place */
  const walkExamples = (place) =>
    void (store.walk.value = { at: (step) => page.examples[step]?.digest, need: undefined, total: page.examples.length, place, back: location.hash, top: 0 });
  return html`
    <p class="enough">${page.enough}</p>
    <h2>Threshold <span class="space"></span><button class="plain" aria-label="The model's own threshold" title="Back to the model's own" onClick=${() => change(null)}>↺</button><span class="value">${percent(threshold)}</span></h2>
    <${Chart} histogram=${page.histogram} threshold=${threshold} />
    <input type="range" min="1" max="99" value=${Math.round(threshold * 100)} aria-label="Threshold" aria-valuetext=${percent(threshold)}
      onInput=${(/** @type {Event} */ event) => (dragged.value = Number(/** @type {HTMLInputElement} */ (event.target).value) / 100)}
      onChange=${(/** @type {Event} */ event) => {
        change(Number(/** @type {HTMLInputElement} */ (event.target).value) / 100);
        dragged.value = null;
      }} />
    ${point && html`<dl class="facts" aria-live="polite">
      <div><dt>tags</dt><dd>${store.number(point.tags)}</dd></div>
      <div><dt>precision, expected</dt><dd>${point.expected_precision == null ? "–" : percent(point.expected_precision)}</dd></div>
      <div><dt>recall, about</dt><dd>${point.recall == null ? "–" : percent(point.recall)}</dd></div>
    </dl>`}
    <p class="dim">${audited
      ? html`Audited: <strong>${percent(audited.precision)}</strong> right (${percent(audited.low)} to ${percent(audited.high)}), by ${plural(audited.count)} at random.`
      : html`Not audited yet: <a href=${store.address("review", page.label, { order: "audit" })}>answer a random page</a> to measure precision.`}</p>
    <h2>Examples <span class="value">${page.examples.length}</span></h2>
    ${page.examples.length
      ? html`<ul class="strip">${page.examples.map((each, place) => html`<li key=${each.digest}><${Example} label=${page.label} ...${each} onOpen=${() => walkExamples(place)} /></li>`)}</ul>`
      : html`<p class="dim">None yet: it goes by the word alone. Say yes to a picture and it learns.</p>`}
    ${page.mistaken_for.length > 0 && html`<h2>Often mistaken for</h2>
      <ul class="plainlist">${page.mistaken_for.map((each) => html`<li key=${each.label}>
        <a href=${store.address("library", "", { q: `${store.quoted(page.label)} ${store.quoted(each.label)}` })}>${each.label}</a>
        <span class="dim">${plural(each.count, "time")}</span></li>`)}</ul>`}
    <p class="dim path">Answered so far: ${page.answered.yes} yes, ${page.answered.no} no, ${page.answered.unknown} unknown.</p>`;
}

/** @param {{label: string, digest: string, influence: number | null, onOpen: () => void}} props */
function Example({ label, digest, influence, onOpen }) {
  const points = influence === null ? 0 : Math.round(100 * influence);
  // influence is what precision would lose without it; a single point is noise
  const says = Math.abs(points) < 2 ? "" : points > 0 ? `helps +${points}` : `hurts −${-points}`;
  const remove = async () => {
    store.toPictures();
    const gesture = store.answer([{ picture: digest, label, answer: "unknown", stack: true }]);
    if (await gesture.taken) store.say("No longer an example.", { action: { text: "Undo", run: () => store.takeBack(gesture) } });
  };
  return html`<a href=${store.address("picture", digest, { label })} onClick=${onOpen}><img src=${api.thumbnail(digest)} alt=${`Example${says && `, ${says} points of precision`}`} loading="lazy" /></a>
    <button class="remove" aria-label="Remove this example" title="Remove this example" onClick=${remove}>×</button>
    ${says && html`<span class=${points > 0 ? "helps" : "hurts"} title="Points of expected precision with this example">${says}</span>`}`;
}

/** How many pictures have which probability; roots, so that few confirmed ones are seen beside thousands. @param {{histogram: api.Histogram, threshold: number}} props */
function Chart({ histogram, threshold }) {
  const { edges, model, yes, no } = histogram;
  const heights = model.map((_, place) => [model[place], yes[place], no[place]].map(Math.sqrt));
  const tallest = Math.max(1, ...heights.map((each) => each[0] + each[1] + each[2]));
  const [open, right, wrong] = [model, yes, no].map((each) => each.reduce((sum, many) => sum + many, 0));
  const name = `Probabilities of ${open} pictures without an answer, ${right} confirmed and ${wrong} rejected`;
  return html`<svg class="chart" viewBox="0 0 200 64" preserveAspectRatio="none" role="img" aria-label=${name}>
      ${heights.map((parts, place) => {
        const [x, width] = [200 * edges[place] + 0.4, Math.max(0.5, 200 * (edges[place + 1] - edges[place]) - 0.8)];
        let y = 64;
        return ["unasked", "yes", "no"].map((kind, part) => {
          const height = (60 * parts[part]) / tallest;
          y -= height;
          return height > 0 && html`<rect class=${kind} x=${x} y=${y} width=${width} height=${height} />`;
        });
      })}
      <line x1=${200 * threshold} x2=${200 * threshold} y1="0" y2="64" />
    </svg>
    <p class="legend"><span class="unasked">not answered</span><span class="yes">✓ confirmed</span><span class="no">✗ rejected</span></p>`;
}
