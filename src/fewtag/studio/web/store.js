// The one store: what the server said last, where one is, what was answered and not yet acknowledged.
import * as api from "./api.js";
import { batch, computed, effect, signal } from "./view.js";

/** @typedef {import("./api.js").Answer} Answer */
/** @typedef {import("./api.js").Cell} Cell */
/** @typedef {{screen: "library" | "review" | "picture", name: string, query: URLSearchParams}} Route */
/** @typedef {{id: string, at: string, answers: Answer[]}} Group answers that were given by one gesture */
/** @typedef {{id: number, text: string, bad: boolean, action?: {text: string, run: () => void}}} Toast */

/** @type {import("./view.js").Signal<import("./api.js").Project | null>} */
export const project = signal(/** @type {any} */ (null));
/** @type {import("./view.js").Signal<import("./api.js").Label[] | null>} */
export const labels = signal(/** @type {any} */ (null));
/** The server's count of changes: a screen reads again what it shows when it moved. */
export const version = computed(() => project.value?.version ?? 0);
export const labelNames = computed(() => (labels.value ?? []).map((label) => label.name));
const lastNames = computed(() => labelNames.value.map((name) => name.split("/").at(-1)));
/** A label's last name, or its whole path where two have the same. */
export const shortName = (/** @type {string} */ path) => {
  const last = path.split("/").at(-1);
  return lastNames.value.indexOf(last) === lastNames.value.lastIndexOf(last) ? last : path;
};
/** Why nothing can be shown: the page has no session. */
export const locked = signal("");
export const online = signal(true);
/** The name of the picture that is open, for the page's title. */
export const pictureName = signal("");
/** How often the studio was away and came back: what could not be read meanwhile is asked for again. */
export const returns = signal(0);
let away = false;
effect(() => {
  if (online.value && away) returns.value = returns.peek() + 1;
  away = !online.value;
});
/** @type {import("./view.js").Signal<Toast[]>} */
export const toasts = signal(/** @type {Toast[]} */ ([]));
/** What a screen reader hears of a result. */
export const announcement = signal("");
/** @type {import("./view.js").Signal<"" | "keys" | "deliver" | "tag" | "refuse" | "new" | "label" | "failures">} */
export const dialog = signal(/** @type {any} */ (""));
/** The name that a dialog starts from. */
export const dialogName = signal("");
/** @param {"deliver" | "tag" | "refuse" | "new" | "label" | "failures" | "keys"} which @param {string} [name] */
export const ask = (which, name = "") =>
  batch(() => {
    dialogName.value = name;
    dialog.value = which;
  });

// --- where one is -------------------------------------------------------------------------------------------------

/** @param {string} hash @returns {Route} */
export function parseRoute(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [screen, name = ""] = path.split("/");
  const known = screen === "review" || screen === "picture" ? screen : "library";
  return { screen: known, name: decodeURIComponent(name), query: new URLSearchParams(query) };
}

export const route = signal(parseRoute(location.hash));
/** The screen before this one. */
export let cameFrom = "";
addEventListener("hashchange", () => {
  cameFrom = route.value.screen;
  route.value = parseRoute(location.hash);
});

/** @param {string} screen @param {string} [name] @param {Record<string, string | undefined>} [query] */
export function address(screen, name = "", query = {}) {
  const wanted = Object.entries(query).filter(([, value]) => value) ;
  const tail = new URLSearchParams(/** @type {[string, string][]} */ (wanted)).toString();
  return `#/${screen === "library" ? "" : `${screen}/${encodeURIComponent(name)}`}${tail && `?${tail}`}`;
}

/** @param {string} screen @param {string} [name] @param {Record<string, string | undefined>} [query] */
export const go = (screen, name, query) => void (location.hash = address(screen, name, query));
/** A label as the search box spells it: quoted where it holds a space. @param {string} name */
export const quoted = (name) => (/[\s":]|^-/.test(name) ? `"${name.replace(/"/g, "")}"` : name);
/** @param {string} query @param {boolean} [instead] of where one is: the back button then skips what was half typed */
export const find = (query, instead = false) =>
  instead ? location.replace(address("library", "", { q: query })) : go("library", "", { q: query });

// --- what was said ------------------------------------------------------------------------------------------------

let lastToast = 0;
/** @param {string} text @param {{bad?: boolean, action?: Toast["action"], seconds?: number}} [how] */
export function say(text, { bad = false, action, seconds = bad ? 12 : 6 } = {}) {
  const toast = { id: ++lastToast, text: `${text[0].toUpperCase()}${text.slice(1)}`, bad, action };
  // what went wrong does not hide what was done
  toasts.value = [...toasts.value.filter((each) => (bad || each.bad) && each.text !== toast.text).slice(-2), toast];
  setTimeout(() => dismiss(toast.id), seconds * 1000);
}
/** @param {number} id */
export const dismiss = (id) => void (toasts.value = toasts.value.filter((each) => each.id !== id));

/** Runs an action; a refusal becomes one sentence on the screen. @template T @param {() => Promise<T>} action @param {(sentence: string, status: number) => void} [refused] @returns {Promise<T | undefined>} */
export async function attempt(action, refused = (sentence) => say(sentence, { bad: true })) {
  try {
    const result = await action();
    online.value = true;
    return result;
  } catch (problem) {
    if (!(problem instanceof api.Problem)) throw problem;
    if (problem.status === 401) locked.value = problem.message;
    else if (problem.status === 0) online.value = false;
    else refused(problem.message, problem.status);
    return undefined;
  }
}

export const loadProject = () => attempt(async () => (project.value = await api.getProject()));
export const loadLabels = () => attempt(async () => (labels.value = await api.getLabels()));

// --- answers: kept in the browser until the server has them on its disk ----------------------------------------------

const KEPT = "fewtag.answers/";
/** @type {import("./view.js").Signal<Group[]>} */
export const unsent = signal(/** @type {Group[]} */ ([]));
/** Answers of this page that the server has; a list shows them already, and is not ranked anew under one's hands. */
const own = signal(0);
/** Rises with every change but these: an undo, a label, what is said in another tab or by an assistant. */
export const elsewhere = computed(() => version.value - own.value);
/** As many answers, or examples, as one request may hold. */
export const MOST = 1000;
let sending = /** @type {Promise<boolean> | null} */ (null);

/** Where a project's answers are kept: the next project on this port must not get them. */
const kept = () => `${KEPT}${project.value?.id}/`;

/** @param {Group} group */
const keyOf = (group) => `${kept()}${group.at}-${group.id}`;

/** Answers that an earlier page of this project did not see acknowledged. */
export function recoverAnswers() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(kept())).sort();
  unsent.value = keys.map((key) => JSON.parse(localStorage[key]));
  if (keys.length) flush();
}

/** @param {{picture: string, label: string, answer: import("./api.js").Verdict, stack?: boolean, marked?: boolean}[]} given @param {string} source */
export async function answer(given, source = "click") {
  if (!given.length) return true;
  for (let first = 0; first < given.length; first += MOST) {
    const answers = given.slice(first, first + MOST).map((each) => ({ id: api.uuid(), ...each, source }));
    const group = { id: api.uuid(), at: `${Date.now()}`, answers };
    try {
      localStorage.setItem(keyOf(group), JSON.stringify(group));
    } catch {
      say("This browser stores nothing for the studio: do not close the page while answers wait.", { bad: true });
    }
    unsent.value = [...unsent.value, group];
  }
  return flush();
}

/** Sends what is waiting, in its order, one group at a time; true once all is acknowledged. */
export function flush() {
  sending ??= sendAll().finally(() => (sending = null));
  return sending;
}

async function sendAll() {
  while (unsent.value.length) {
    const group = unsent.value[0];
    try {
      await api.sendAnswers(group.answers);
    } catch (problem) {
      const status = problem instanceof api.Problem ? problem.status : 0;
      if (status === 401) locked.value = /** @type {Error} */ (problem).message;
      // a studio that was just started knows its pictures one after the other
      const early = status === 404 && (await loadProject())?.indexing;
      if (early || status === 0 || status === 401 || status === 429 || status >= 500) {
        online.value = status !== 0;
        setTimeout(flush, 1500);
        return false;
      }
      say(/** @type {Error} */ (problem).message, { bad: true });
    }
    localStorage.removeItem(keyOf(group));
    batch(() => {
      online.value = true;
      unsent.value = unsent.value.filter((each) => each.id !== group.id);
      own.value += 1;
    });
  }
  loadProject();
  loadLabels();
  return true;
}

/** @param {"undo" | "redo"} which */
async function turnBack(which) {
  if (which === "undo" && !online.value && unsent.value.length) {
    const group = /** @type {Group} */ (unsent.value.at(-1));
    localStorage.removeItem(keyOf(group));
    return void (unsent.value = unsent.value.slice(0, -1));
  }
  await flush();
  const done = await attempt(api[which]);
  if (!done) return;
  const back = which === "undo" ? { text: "Redo", run: redo } : { text: "Undo", run: undo };
  await Promise.all([loadLabels(), loadProject()]);
  say(`${done.what}.`, { action: back });
}
export const undo = () => turnBack("undo");
export const redo = () => turnBack("redo");

// --- lists --------------------------------------------------------------------------------------------------------

const PAGE = 200;
/** Height by width of most pictures: the shape of a grid's cells. */
export const ratio = signal(0.75);
/** @param {Cell[]} cells */
export function seeShapes(cells) {
  const shapes = cells.map((cell) => cell.height / cell.width).sort((one, other) => one - other);
  if (shapes.length > 1) ratio.value = Math.min(1, Math.max(0.66, shapes[Math.floor(shapes.length / 2)]));
}

/** A ranked list of pictures, read by the page as a grid scrolls over it. */
export class Listing {
  /** @param {import("./api.js").Search} wanted */
  constructor(wanted) {
    this.wanted = wanted;
    this.total = signal(/** @type {number | null} */ (null));
    /** Pictures, where `total` counts cells: one cell stands for a stack. */
    this.members = 0;
    /** Why the search was refused. */
    this.refusal = signal("");
    this.means = signal(/** @type {{text: string, as: string, detail: string}[]} */ ([]));
    /** The state of the project that it was read in. @type {string | undefined} */
    this.shown = undefined;
    /** Rises with every page that came. */
    this.version = signal(0);
    /** @type {Map<number, Cell[]>} */
    this.pages = new Map();
    /** @type {Map<number, Promise<any>>} */
    this.asked = new Map();
  }

  /** @param {number} place @returns {Cell | undefined} */
  at(place) {
    return this.pages.get(Math.floor(place / PAGE))?.[place % PAGE];
  }

  /** @param {number} first @param {number} end */
  need(first, end) {
    const last = Math.floor(Math.max(0, Math.min(end, this.total.peek() ?? end) - 1) / PAGE);
    const waits = [];
    for (let page = Math.floor(Math.max(0, first) / PAGE); page <= last; page++) {
      if (!this.asked.has(page)) this.asked.set(page, this.read(page));
      waits.push(this.asked.get(page));
    }
    return Promise.all(waits);
  }

  /** @param {number} page */
  async read(page) {
    const refused = (/** @type {string} */ sentence) => (this.total.peek() ? say(sentence, { bad: true }) : (this.refusal.value = sentence));
    const found = await attempt(() => api.search({ ...this.wanted, offset: page * PAGE, limit: PAGE }), refused);
    if (!found) {
      if (online.value) this.total.value ??= 0; // refused: nothing will come
      return void this.asked.delete(page);
    }
    this.pages.set(page, found.pictures);
    if (page === 0) seeShapes(found.pictures);
    batch(() => {
      this.refusal.value = "";
      this.members = found.members;
      this.total.value = found.total;
      if (page === 0) this.means.value = found.query_means;
      this.version.value += 1;
    });
  }

  /** Reads again what was read, where it is on the screen. @param {number} first @param {number} end */
  async refresh(first, end) {
    this.asked.clear();
    await this.need(first, end);
    for (const page of this.pages.keys()) if (!this.asked.has(page)) this.pages.delete(page);
  }

  /** How many pictures these cells stand for. @param {string[]} digests */
  count(digests) {
    const cells = new Map([...this.pages.values()].flat().map((cell) => [cell.digest, cell]));
    return digests.reduce((sum, digest) => sum + (cells.get(digest)?.stack ?? 1), 0);
  }

  /** Shows answers before the server has them. @param {Iterable<string>} digests @param {string} label @param {import("./api.js").Verdict} verdict */
  mark(digests, label, verdict) {
    const wanted = new Set(digests);
    for (const cell of [...this.pages.values()].flat()) {
      if (!wanted.has(cell.digest)) continue;
      const others = cell.tags.filter((tag) => tag.label !== label);
      cell.tags = verdict === "unknown" ? others : [{ label, p: verdict === "yes" ? 1 : 0, state: verdict }, ...others];
    }
    this.version.value += 1;
  }
}

/** The list that the arrows of the Picture screen walk along, where one is in it, and how far its grid was scrolled. */
export const walk = signal({ at: /** @type {(place: number) => string | undefined} */ (() => undefined), total: 0, place: 0, back: "#/", top: 0 });
