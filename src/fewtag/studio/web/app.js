// The frame around the three screens: session, header, labels, toasts; what the server tells while one works.
import * as api from "./api.js";
import { Dialogs } from "./dialogs.js";
import { Library, listing, percent, reading, selection } from "./library.js";
import { Picture } from "./picture.js";
import { Review } from "./review.js";
import * as store from "./store.js";
import { html, render, signal, useEffect, useLayoutEffect, useRef, useSignal } from "./view.js";

/** On a narrow screen the labels are behind a button. */
const drawer = signal(false);
addEventListener("hashchange", () => (drawer.value = false));
addEventListener("keydown", (event) => {
  if (!drawer.value || event.key !== "Escape") return;
  event.preventDefault();
  drawer.value = false;
}, { capture: true }); // before it means what the screen says
const STATES = [
  ["", "All pictures"],
  ["is:untagged", "Untagged"],
  ["is:unsure", "Unsure"],
  ["is:confirmed", "Confirmed"],
];

function Header() {
  const { screen, query } = store.route.value;
  const field = /** @type {{current: HTMLInputElement | null}} */ (useRef(null));
  const later = useRef(0);
  /** What was last searched for from here, since the field has the focus. */
  const typed = useRef(/** @type {string | null} */ (null));
  const asked = screen === "library" ? (query.get("q") ?? "") : "";
  useLayoutEffect(() => {
    if (!field.current || asked === typed.current) return;
    field.current.value = asked;
    typed.current = null;
  }, [asked]);
  useEffect(() => {
    // who went elsewhere is not fetched back by what was typed before
    if (screen !== "library" || asked !== typed.current) clearTimeout(later.current);
  }, [store.route.value]);
  const search = () => {
    clearTimeout(later.current);
    const wanted = /** @type {HTMLInputElement} */ (field.current).value.trim();
    const instead = typed.current !== null && screen === "library";
    typed.current = wanted;
    store.find(wanted, instead);
  };
  const project = store.project.value;
  return html`<header class="top">
    <button class="plain menu" aria-label="Labels" aria-expanded=${drawer.value} aria-controls="labels" onClick=${() => (drawer.value = !drawer.value)}>☰</button>
    <a class="brand" href="#/" title=${project?.name}><img src="/static/icon.png" alt="" width="22" height="22" /><span>${project?.name ?? "fewtag"}</span></a>
    <form role="search" onSubmit=${(/** @type {Event} */ event) => {
      event.preventDefault();
      search();
      field.current?.blur();
      store.toPictures();
    }}>
      <input id="search" ref=${field} type="search" aria-label="Search" list="suggestions" autocomplete="off" placeholder="Search: a label, any word, -not this, is:unsure" enterkeyhint="search"
        onInput=${() => {
          clearTimeout(later.current);
          later.current = setTimeout(search, 350);
        }}
        onBlur=${() => (typed.current = null)}
        onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Escape" && field.current?.blur()} />
      <datalist id="suggestions">${[...store.labelNames.value.map(store.quoted), "is:unsure", "is:confirmed", "is:untagged"].map((each) => html`<option key=${each} value=${each}></option>`)}</datalist>
    </form>
    <button class="plain" aria-label="Undo" title="Undo (Backspace)" disabled=${!project?.can_undo && !store.unsent.value.length} onClick=${store.undo}>↶</button>
    <button class="plain" aria-label="Redo" title="Redo (ctrl-shift-z)" disabled=${!project?.can_redo} onClick=${store.redo}>↷</button>
    <button class="plain wideonly" aria-label="All keys" title="All keys (?)" onClick=${() => (store.dialog.value = "keys")}>?</button>
    <button class="primary" onClick=${() => (store.dialog.value = "deliver")}>Deliver</button>
    ${project?.indexing && html`<progress class="indexing" max=${project.pictures} value=${project.indexed + project.failures}
      aria-label="Reading pictures" title=${`Reading ${reading()}`}></progress>`}
  </header>`;
}

/** Labels as a tree: a path such as birds/heron lies under birds. */
function Labels() {
  const { screen, name, query } = store.route.value;
  const current = screen === "review" ? name : screen === "library" ? (query.get("q") ?? "") : "-";
  const known = store.labels.value;
  const rows = tree(known ?? []);
  const project = store.project.value;
  useEffect(() => document.querySelector("#labels [aria-current=page]")?.scrollIntoView({ block: "nearest" }), [current, rows.length]);
  return html`<nav id="labels" class=${drawer.value ? "labels open" : "labels"} aria-label="Labels" onClick=${() => (drawer.value = false)}>
    <ul>${STATES.map(([state, text]) => html`<li key=${state}><a class="row" href=${store.address("library", "", { q: state })}
      aria-current=${screen === "library" && current === state && !query.get("like") ? "page" : "false"}><span class="name">${text}</span>
      ${state === "" && project && html`<span class="count">${store.number(project.indexed)}</span>`}</a></li>`)}</ul>
    <h2>Labels <button class="plain" aria-label="New label" title="New label (n)" onClick=${() => store.ask("new")}>+</button></h2>
    ${known?.length === 0 && html`<p class="dim">None yet.</p>`}
    <ul>${rows.map(({ depth, text, label, path }) => html`<li key=${path}>${label
      ? html`<span class="pair">
          <a class="row" style=${{ "--depth": depth }} href=${screen === "review" ? store.address("review", path) : store.address("library", "", { q: store.quoted(path) })}
            aria-current=${current === path || current === store.quoted(path) ? "page" : "false"} title=${path}>
            <span class="name">${text}</span>
            <span class="count" title="Pictures with this label, and the precision to expect">${store.number(label.tags ?? 0)}${label.expected_precision != null && html`<small>${percent(label.expected_precision)}</small>`}</span></a>
          <a class="pill" href=${store.address("review", path)} aria-label=${`Review ${path}${label.waiting ? `: ${label.waiting} unsure` : ""}`} title=${`Review${label.waiting ? `: ${label.waiting} unsure` : ""}`}>${label.waiting ? store.number(label.waiting) : "›"}</a></span>`
      : html`<span class="pair"><span class="row group" style=${{ "--depth": depth }}>${text}</span>
          <button class="pill" aria-label=${`Rename ${path}`} title="Rename" onClick=${() => store.ask("label", path)}>⋯</button></span>`}</li>`)}</ul>
    ${project && project.failures > 0 && html`<p class="dim"><button class="plain" onClick=${() => (store.dialog.value = "failures")}>${store.number(project.failures)} unreadable</button></p>`}
  </nav>`;
}

/** @param {api.Label[]} known */
function tree(known) {
  const byName = new Map(known.map((label) => [label.name, label]));
  const paths = new Set(known.flatMap(({ name }) => name.split("/").map((_, end, parts) => parts.slice(0, end + 1).join("/"))));
  const inOrder = [...paths].sort((one, other) => (one.replaceAll("/", "\0") < other.replaceAll("/", "\0") ? -1 : 1));
  return inOrder.map((path) => {
    const parts = path.split("/");
    return { path, text: /** @type {string} */ (parts.at(-1)), depth: Math.min(4, parts.length - 1), label: byName.get(path) };
  });
}

/** The notice that was read and closed. */
const closed = signal("");

function Toasts() {
  const notice = store.project.value?.notice;
  const waiting = store.unsent.value.length;
  return html`<div class="toasts" role="status">
    ${!store.online.value && html`<p class="toast bad" role="alert">The studio does not answer. ${waiting ? "Your answers are kept here and sent when it is back." : "Start it again with fewtag studio."}</p>`}
    ${store.trouble.value && html`<p class="toast bad" role="alert">${store.trouble.value} Your answers are kept here and sent again.</p>`}
    ${notice && notice !== closed.value && html`<p class="toast bad" role="alert"><span>Project: ${notice}</span>
      <button class="plain" aria-label="Close" onClick=${() => (closed.value = notice)}>×</button></p>`}
    ${store.toasts.value.map((toast) => html`<p key=${toast.id} class=${toast.bad ? "toast bad" : "toast"} role=${toast.bad ? "alert" : undefined}>
      <span>${toast.text}</span>
      ${toast.action && html`<button class="plain" onClick=${() => {
        store.dismiss(toast.id);
        toast.action?.run();
      }}>${toast.action.text}</button>`}
      ${toast.bad && html`<button class="plain" aria-label="Close" onClick=${() => store.dismiss(toast.id)}>×</button>`}
    </p>`)}
  </div>
  <div class="unseen" aria-live="polite">${store.announcement.value}</div>`;
}

function Locked() {
  useEffect(() => {
    // a studio that was opened again in another tab lets this one in too
    const again = setInterval(() => api.getProject().then(() => location.reload(), () => {}), 3000);
    return () => clearInterval(again);
  }, []);
  const refusal = useSignal("");
  const enter = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const typed = String(new FormData(/** @type {HTMLFormElement} */ (event.target)).get("key")).trim();
    const key = typed.replace(/^.*#token=/, ""); // or the whole address
    const refused = (/** @type {api.Problem} */ problem) => (refusal.value = problem.status === 401 ? "That is not the key of this studio." : problem.message);
    await api.openSession(key).then(() => location.reload(), refused);
  };
  const waiting = store.unsent.value.length;
  return html`<main class="nothing locked"><h1>This page has no key to the studio</h1>
    <p>Open the address that <code>fewtag studio</code> printed: it carries the key. Each browser needs the key once; each start of the studio has a new one.</p>
    <form onSubmit=${enter}>
      <label>Or give the key itself, such as that of <code>--token-file</code> or <code>FEWTAG_TOKEN</code> <input name="key" type="password" autocomplete="off" required /></label>
      <button type="submit" class="primary">Enter</button>
    </form>
    ${refusal.value && html`<p class="bad" role="alert">${refusal.value}</p>`}
    ${waiting > 0 && html`<p>What you answered is kept in this browser and sent as soon as you are in.</p>`}</main>`;
}

function App() {
  if (store.locked.value) return html`<${Locked} />`;
  const { screen } = store.route.value;
  const subject = screen === "library" ? store.route.value.query.get("q") : screen === "review" ? store.route.value.name : store.pictureName.value;
  document.title = `${subject ? `${subject} · ` : ""}${store.project.value?.name ?? "fewtag"} · studio`;
  const screens = { library: Library, review: Review, picture: Picture };
  return html`<a class="skip" href="#main" onClick=${(/** @type {Event} */ event) => {
      event.preventDefault();
      store.toPictures();
    }}>To the pictures</a>
    <${Header} /><${Labels} />
    ${drawer.value && html`<div class="veil" onClick=${() => (drawer.value = false)}></div>`}
    <${screens[screen]} /><${Toasts} /><${Dialogs} />`;
}

/** Progress and changes as they come; a hidden page lets go of its connection, browsers give only six. */
function listen() {
  /** @type {EventSource | null} */
  let source = null;
  let again = 0;
  const open = () => {
    if (source || document.hidden) return;
    source = new EventSource("/v1/events");
    source.addEventListener("project", (event) => {
      store.online.value = true;
      store.hearProject(JSON.parse(/** @type {MessageEvent} */ (event).data));
      clearTimeout(again);
      again = setTimeout(store.loadLabels, 300);
    });
    source.addEventListener("open", () => {
      store.online.value = true;
      if (store.unsent.value.length) store.flush();
    });
    source.addEventListener("error", () => {
      source?.close();
      source = null;
      setTimeout(async () => {
        await store.loadProject();
        if (!store.locked.value) open();
      }, 1500);
    });
  };
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) return open();
    source?.close();
    source = null;
  });
  open();
}

async function start() {
  const token = /^#token=(.+)$/.exec(location.hash)?.[1];
  if (token) {
    history.replaceState(null, "", `${location.pathname}#/`);
    store.route.value = store.parseRoute("#/");
    await store.attempt(() => api.openSession(store.decoded(token)));
  }
  render(html`<${App} />`, /** @type {HTMLElement} */ (document.getElementById("app")));
  await store.loadProject();
  if (store.locked.value) return;
  await painted();
  await store.loadLabels();
  listen();
}

/** Once the first pictures are seen, or a second later: a studio that was just started has labels to work out only then. */
async function painted() {
  await listing.value?.need(0, 1);
  await new Promise((done) => setTimeout(done));
  const images = [.../** @type {NodeListOf<HTMLImageElement>} */ (document.querySelectorAll(".picture img"))];
  await Promise.race([Promise.allSettled(images.map((image) => image.decode())), new Promise((done) => setTimeout(done, 1000))]);
}

// a file that is dropped would be opened in the page's place
for (const kind of /** @type {const} */ (["dragover", "drop"]))
  addEventListener(kind, (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    if (kind === "drop") store.say("Pictures stay in their folders: start the studio with the folder, fewtag studio PROJECT FOLDER.");
  });

// for the tests and the curious: what is shown, by its names
Object.assign(globalThis, { studio: { store, selection, listing } });
start();
