// Dialogs: deliver the tags, name a label, the page of keys.
import * as api from "./api.js";
import { listKeys } from "./keys.js";
import { answerFor, plural, reading, selection } from "./library.js";
import * as store from "./store.js";
import { html, useEffect, useLayoutEffect, useRef, useSignal } from "./view.js";

/** @param {{title: string, children?: import("./view.js").View, wide?: boolean}} props */
function Dialog({ title, children, wide }) {
  const element = /** @type {{current: HTMLDialogElement | null}} */ (useRef(null));
  useLayoutEffect(() => {
    const dialog = /** @type {HTMLDialogElement} */ (element.current);
    dialog.showModal();
    return () => dialog.close(); // which gives the focus back; one that is taken away open does not
  }, []);
  const close = () => (store.dialog.value = "");
  /** Text that is dragged over the edge ends outside, but began inside. */
  const outside = useRef(false);
  return html`<dialog ref=${element} class=${wide ? "wide" : ""} aria-labelledby="dialog-title" onCancel=${close}
    onClose=${() => element.current?.isConnected && close()}
    onPointerDown=${(/** @type {PointerEvent} */ event) => (outside.current = event.target === element.current)}
    onClick=${(/** @type {MouseEvent} */ event) => event.target === element.current && outside.current && close()}>
    <div class="sheet" tabindex="-1" autofocus=${wide}>
      <header><h2 id="dialog-title">${title}</h2><button class="plain" aria-label="Close" onClick=${close}>×</button></header>
      ${children}
    </div>
  </dialog>`;
}

const DIALOGS = {
  keys: Keys,
  deliver: Deliver,
  tag: () => html`<${Name} title="Tag" says="Tag" verdict="yes" />`,
  refuse: () => html`<${Name} title="Not this" says="Say no" verdict="no" />`,
  new: NewLabel,
  failures: Failures,
  label: EditLabel,
};
export const Dialogs = () => store.dialog.value && html`<${DIALOGS[store.dialog.value]} />`;

/** @param {{names: readonly string[]}} props */
const Names = ({ names }) => html`<datalist id="names">${names.map((name) => html`<option key=${name} value=${name}></option>`)}</datalist>`;

/** What the dialogs speak of: the picture that is open, the selection. */
function chosenPictures() {
  const { screen, name } = store.route.value;
  return screen === "picture" ? [name] : screen === "library" ? [...selection.value] : [];
}

/** Forms under way: a second Enter would be a second change. @type {WeakSet<HTMLFormElement>} */
const sent = new WeakSet();
/** @param {(name: string) => unknown} run */
const submitting = (run) => async (/** @type {SubmitEvent} */ event) => {
  event.preventDefault();
  const form = /** @type {HTMLFormElement} */ (event.target);
  const name = String(new FormData(form).get("name") ?? "").trim();
  if (!name || sent.has(form)) return;
  sent.add(form);
  // it may have been made elsewhere, or before this page knew the labels
  if (!store.labelNames.value.includes(name)) await store.loadLabels();
  await run(name);
  sent.delete(form);
};

/** The label of this name, in whatever case: “Food” beside “food” would be two labels of one thing. @param {string} typed */
const labelCalled = (typed) =>
  store.labelNames.value.includes(typed) ? typed : store.labelNames.value.find((each) => each.toLowerCase() === typed.toLowerCase());

/** @param {{title: string, says: string, verdict: "yes" | "no"}} props */
function Name({ title, says, verdict }) {
  const digests = chosenPictures();
  const refusal = useSignal("");
  const run = (/** @type {string} */ name) => {
    const known = labelCalled(name);
    if (!known && verdict === "yes") return learn(name, digests, (sentence) => (refusal.value = sentence));
    if (!known) return void (refusal.value = `There is no label “${name}” yet.`);
    store.dialog.value = "";
    answerFor(known, verdict, digests);
    selection.value = new Set();
  };
  return html`<${Dialog} title=${`${title}: ${plural(digests.length)}`}>
    ${digests.length === 0
      ? html`<p>Select pictures first: click them, press space, or draw a rectangle around them.</p>`
      : html`<form onSubmit=${submitting(run)}>
          <label>Label <input name="name" list="names" maxlength="200" autocomplete="off" autofocus required /></label>
          <${Names} names=${store.labelNames.value} />
          ${refusal.value && html`<p class="bad" role="alert">${refusal.value}</p>`}
          <footer><button type="submit" class="primary">${says}</button></footer>
        </form>`}
  </${Dialog}>`;
}

/** Makes a label from pictures, or from its name alone, and asks about it. @param {string} typed @param {string[]} digests @param {(sentence: string) => void} refused */
async function learn(typed, digests, refused) {
  const known = labelCalled(typed);
  const name = known ?? typed;
  if (known && !digests.length) {
    store.dialog.value = "";
    store.say(`There is a label “${known}” already.`);
    return store.go("review", known);
  }
  const stack = store.route.value.screen === "library";
  const made = await store.attempt(() => (digests.length ? api.teach(name, digests, stack) : api.define(name, true)), refused);
  if (!made) return; // the dialog stays, with what was typed
  store.dialog.value = "";
  selection.value = new Set();
  const meant = made.means?.match(/ \(.+\)$/)?.[0] ?? ""; // a name of another language: “Hund” (dog)
  await store.sayChange(`“${made.name}”${meant} ${digests.length ? `learnt from ${plural(digests.length)}` : "starts from its name"}.`, made.undo);
  store.go("review", made.name);
}

function NewLabel() {
  const chosen = chosenPictures();
  const shown = useSignal(true);
  const digests = shown.value ? chosen : [];
  const refusal = useSignal("");
  return html`<${Dialog} title="New label">
    <form onSubmit=${submitting((name) => learn(name, digests, (sentence) => (refusal.value = sentence)))}>
      ${digests.length > 0 && html`<ul class="strip">${digests.slice(0, 6).map((digest) => html`<li key=${digest}><img src=${api.thumbnail(digest)} alt="Example" /></li>`)}
        ${digests.length > 6 && html`<li class="more">+${digests.length - 6}</li>`}</ul>`}
      <label>Name <input name="name" list="names" maxlength="200" defaultValue=${store.dialogName.value} autocomplete="off" autofocus required placeholder="heron, or birds/heron" /></label>
      <${Names} names=${store.labelNames.value} />
      ${refusal.value && html`<p class="bad" role="alert">${refusal.value}</p>`}
      ${chosen.length > 0 && html`<label class="choice"><input type="checkbox" checked=${shown.value} onChange=${() => (shown.value = !shown.value)} />
        <span>Learn it from ${chosen.length > 1 ? `these ${plural(chosen.length)}` : "this picture"}</span></label>`}
      <p class="dim">${digests.length ? "Then you say yes or no to what it finds." : `It starts from the word alone.${chosen.length ? "" : " Select pictures first to teach it by example."}`}</p>
      <footer><button type="submit" class="primary">${digests.length ? "Teach" : "Add"}</button></footer>
    </form>
  </${Dialog}>`;
}

function EditLabel() {
  const name = store.dialogName.value;
  const typed = useSignal(name);
  const merges = typed.value.trim() !== name && store.labelNames.value.includes(typed.value.trim());
  const rename = async (/** @type {string} */ to) => {
    if (to === name) return void (store.dialog.value = "");
    const names = store.labelNames.value;
    const merge = names.includes(to);
    store.dialog.value = "";
    // what lies under both names becomes one, too
    const made = await store.attempt(() => api.change(name, { name: to, merge: merge || names.some((each) => each.startsWith(`${to}/`)) }));
    if (!made) return;
    await store.sayChange(merge ? `“${name}” is now part of “${made.name}”.` : `“${name}” is now “${names.includes(name) ? made.name : to}”.`, made.undo);
    store.go("review", made.name);
  };
  const forget = async () => {
    store.dialog.value = "";
    const undo = await store.attempt(() => api.forget(name));
    if (!undo) return;
    await store.sayChange(`“${name}” is deleted.`, undo);
    store.go("library");
  };
  return html`<${Dialog} title=${`Label “${name}”`}>
    <form onSubmit=${submitting(rename)}>
      <label>Name <input name="name" list="names" maxlength="200" defaultValue=${name} autocomplete="off" autofocus required
        onInput=${(/** @type {InputEvent} */ event) => (typed.value = /** @type {HTMLInputElement} */ (event.target).value)} /></label>
      <${Names} names=${store.labelNames.value} />
      <p class="dim">The name of another label makes the two one. A slash makes a tree: <em>birds/heron</em>; what lies under a name moves with it.</p>
      <footer>${store.labelNames.value.includes(name) && html`<button type="button" class="plain bad" onClick=${forget}>Delete the label</button>`}<span class="space"></span><button type="submit" class="primary">${merges ? "Merge the two" : "Rename"}</button></footer>
    </form>
  </${Dialog}>`;
}

function Failures() {
  const failures = useSignal(/** @type {{name: string, reason: string}[]} */ ([]));
  useEffect(() => void store.attempt(async () => (failures.value = await api.getFailures())), []);
  const again = async () => {
    if (!(await store.attempt(api.rescan))) return;
    store.dialog.value = "";
    store.say("The folders are looked through again.");
  };
  return html`<${Dialog} title="Unreadable pictures" wide>
    <ul class="plainlist">${failures.value.map((each) => html`<li key=${each.name}>${!each.reason.includes(each.name) && html`<strong>${each.name}</strong> `}${each.reason}</li>`)}</ul>
    <footer><button onClick=${again}>Try again now</button></footer>
  </${Dialog}>`;
}

const FORMATS = [
  ["csv", "Table (CSV)", "one row a picture, for spreadsheets"],
  ["jsonl", "JSON lines", "one object a picture, for programs"],
  ["parquet", "Parquet", "probabilities in one struct column, for data frames"],
  ["xmp", "XMP sidecars", "beside the pictures, for photo programs"],
  ["label-studio", "Label Studio", "tasks with the tags as predictions"],
  ["fiftyone", "FiftyOne", "a data set; the pictures stay where they are"],
  ["coco", "COCO", "annotations of whole pictures"],
  ["imagefolder", "Image folder", "copies of the pictures, for Hugging Face"],
  ["onnx", "ONNX", "the labels themselves, to tag without fewtag"],
];

function Deliver() {
  const wanted = useSignal({ format: "csv", confirmed_only: false, scores: true });
  const plan = useSignal(/** @type {{rows: number, changes: number, sample: Record<string, any>[]} | null} */ (null));
  const job = useSignal(/** @type {api.Job | null} */ (null));
  const refusal = useSignal("");
  const back = useSignal(false);
  /** Each looks at all pictures: one at a time, and none that was overtaken by the next choice. */
  const looks = useRef(/** @type {Promise<unknown>} */ (Promise.resolve()));
  const closed = useRef(false);
  useEffect(() => () => void (closed.current = true), []);
  useEffect(() => {
    let late = false;
    refusal.value = "";
    plan.value = null;
    const look = async () => {
      await store.flush();
      if (late) return;
      await api.deliver({ ...wanted.value, dry_run: true }).then(
        (got) => !late && (plan.value = got),
        (problem) => !late && (refusal.value = problem.message),
      );
    };
    looks.current = looks.current.then(look);
    return () => void (late = true);
  }, [wanted.value]);
  /** @param {Partial<typeof wanted.value>} choice */
  const choose = (choice) => {
    job.value = null;
    back.value = false;
    wanted.value = { ...wanted.value, ...choice };
  };
  /** @param {boolean} take_back */
  const start = async (take_back) => {
    /** @type {api.Job | null} */
    let now = { id: "", kind: "deliver", state: "running", done: 0, total: 0, detail: null, result: null };
    job.value = now;
    back.value = take_back;
    refusal.value = "";
    const asked = take_back ? { format: "xmp", take_back } : wanted.value;
    /** Another choice may be shown by now. */
    const seen = () => !closed.current && job.value === now;
    const show = (/** @type {api.Job | undefined} */ next) => {
      if (seen()) job.value = next ?? null;
      now = next ?? null;
    };
    show(await store.attempt(() => api.deliver({ ...asked, dry_run: false })));
    while (now?.state === "running") {
      const { id } = now;
      await new Promise((wake) => setTimeout(wake, 250));
      const next = await store.attempt(() => api.getJob(id));
      show(next ?? (store.online.value ? undefined : now)); // while the studio is away, it may go on
    }
    const failure = now?.state === "failed" ? (now.detail ?? "The delivery failed.") : "";
    if (seen()) {
      refusal.value = failure;
      if (take_back && now?.state === "done") wanted.value = { ...wanted.value }; // what would be written now
      return;
    }
    const result = now?.result;
    if (failure) store.say(failure, { bad: true });
    else if (result?.failures) store.say(`${ended(result, take_back)} ${failed(result.failures, take_back)}`, { bad: true });
    else if (result) store.say(ended(result, take_back), { seconds: 20 });
  };
  const done = job.value?.state === "done" ? job.value : null;
  useEffect(() => {
    // the button that was pressed is gone, or off
    if (job.value?.state === "running" || document.activeElement !== document.body) return;
    /** @type {HTMLElement | null} */ (document.querySelector("dialog a.primary") ?? document.querySelector("dialog .sheet"))?.focus();
  }, [job.value?.state]);
  const file = done?.result?.file;
  const lost = done?.result?.failures ?? 0;
  const why = (done?.result?.sample ?? []).filter((/** @type {Record<string, any>} */ row) => row.failure);
  const { format: form } = wanted.value;
  const [sidecars, graph] = [form === "xmp", form === "onnx"];
  const table = ["csv", "jsonl", "parquet"].includes(form);
  const unit = sidecars ? "picture" : graph ? "label" : "row";
  const says = sidecars ? "sidecars to write; the pictures themselves are never touched" : "new, changed or gone";
  return html`<${Dialog} title="Deliver the tags" wide>
    <fieldset class="formats"><legend>As</legend>${FORMATS.map(([format, text, says]) => html`<label class="choice" key=${format}>
      <input type="radio" name="format" checked=${wanted.value.format === format} onChange=${() => choose({ format })} /><span>${text} <span class="dim">${says}</span></span></label>`)}</fieldset>
    ${!graph && html`<label class="choice"><input type="checkbox" checked=${wanted.value.confirmed_only} onChange=${() => choose({ confirmed_only: !wanted.value.confirmed_only })} />
      <span>Only what a person confirmed</span></label>`}
    ${!graph && !sidecars && html`<label class="choice"><input type="checkbox" checked=${wanted.value.scores} onChange=${() => choose({ scores: !wanted.value.scores })} />
      <span>With probabilities</span></label>`}
    <div class="plan" aria-live="polite">
      ${refusal.value && html`<p class="bad">${refusal.value}</p>`}
      ${lost > 0 && html`<p class="bad" role="alert">${failed(lost, back.value)}</p>${why.length > 0 && html`<${Sample} rows=${why} />`}`}
      ${done && html`<p>${ended(done.result, back.value)}</p>`}
      ${plan.value && (!done || back.value) && html`<p><strong>${plural(plan.value.rows, unit)}</strong>${!graph && `, ${store.number(plan.value.changes)} ${says}`}.</p><${Sample} rows=${plan.value.sample} />`}
      ${reading() && !graph && html`<p>Still reading, ${reading()}: the other pictures are not in it yet.</p>`}
      ${!plan.value && !refusal.value && html`<p class="dim">Looking at what would be written…</p>`}
    </div>
    <footer>
      ${job.value?.state === "running" && html`<progress max=${job.value.total || 1} value=${job.value.done} aria-label="Delivery"></progress>`}
      <span class="space"></span>
      ${file && table && html`<a class="button primary" href=${`/v1/deliveries/${encodeURIComponent(file)}`} download=${file}>Download</a>`}
      ${sidecars && !back.value && html`<button disabled=${job.value?.state === "running"} onClick=${() => start(true)}>Take all back</button>`}
      ${(!done || back.value) && html`<button class="primary" disabled=${!plan.value?.rows || job.value?.state === "running"} onClick=${() => start(false)}>Deliver</button>`}
    </footer>
  </${Dialog}>`;
}

/** @param {{file: string | null, changes: number}} result @param {boolean} [back] */
const ended = ({ file, changes }, back) =>
  file ? `Written: deliveries/${file} in the project's folder.` : `${plural(changes, "sidecar")} ${back ? "taken back" : "written"}.`;
/** @param {number} many @param {boolean} back */
const failed = (many, back) => `${plural(many, "sidecar")} could not be ${back ? "taken back" : "written"}.`;

/** What becomes of a sidecar's labels. @param {Record<string, any>} row */
const signed = ({ added = [], removed = [], failure }) =>
  failure ? "cannot be written" : [...added.map((/** @type {string} */ each) => `+ ${each}`), ...removed.map((/** @type {string} */ each) => `− ${each}`)].join(", ");

/** @param {{rows: Record<string, any>[]}} props */
function Sample({ rows }) {
  if (!rows.length) return html`<p class="dim">Nothing new: it is all there, or no picture has a tag yet.</p>`;
  if (rows[0].file)
    return html`<ul class="sample">${rows.map((row) => html`<li key=${row.image}><details><summary>${row.image} <strong>${signed(row)}</strong></summary><pre>${row.diff ?? row.failure}</pre></details></li>`)}</ul>`;
  const columns = Object.keys(rows[0]).slice(0, 6);
  /** @param {any} value @returns {string} */
  const text = (value) => {
    if (typeof value === "number") return String(Math.round(value * 1000) / 1000);
    if (Array.isArray(value)) return value.map(text).join(", ") || "–";
    if (value && typeof value === "object") return Object.entries(value).map(([name, each]) => `${name} ${text(each)}`).join(" · ");
    return String(value ?? "–");
  };
  return html`<div class="sample"><table><thead><tr>${columns.map((column) => html`<th scope="col" key=${column}>${column}</th>`)}</tr></thead>
    <tbody>${rows.slice(0, 5).map((row, place) => html`<tr key=${place}>${columns.map((column) => html`<td key=${column}>${text(row[column])}</td>`)}</tr>`)}</tbody></table></div>`;
}

const SHOWN = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Enter: "⏎", Escape: "Esc", Backspace: "⌫" };

function Keys() {
  const { here, everywhere } = listKeys();
  /** @param {string} title @param {import("./keys.js").Key[]} keys */
  const part = (title, keys) => html`<h3>${title}</h3><dl class="keys">${keys.map((key) => html`<div key=${key.says}>
    <dt>${(key.keys.length > 4 ? [`${key.keys[0]} … ${key.keys.at(-1)}`] : key.keys.filter((each) => !each.startsWith("shift-"))).map((each) => html`<kbd key=${each}>${/** @type {Record<string, string>} */ (SHOWN)[each] ?? each}</kbd>`)}</dt><dd>${key.says}</dd></div>`)}</dl>`;
  return html`<${Dialog} title="Keys" wide>${part("On this screen", here)}${part("Everywhere", everywhere)}
    <p class="dim">With shift, arrows and clicks select a range; the command key of a Mac counts as ctrl.</p></${Dialog}>`;
}
