// The one store: what the server said last, where one is, what was answered and not yet acknowledged.
import * as api from "./api.js";
import { batch, computed, effect, signal } from "./view.js";

/** @typedef {import("./api.js").Answer} Answer */
/** @typedef {import("./api.js").Cell} Cell */
/** @typedef {{screen: "library" | "review" | "picture", name: string, query: URLSearchParams}} Route */
/** @typedef {{id: string, at: string, answers?: Answer[], undoes?: string[][]}} Group answers that were given at once; or what to take back */
/** @typedef {{ids: string[][], taken: Promise<boolean>, pictures: number, settled: boolean, undone: boolean}} Gesture its changes, the last one first, each by answers one of which it has; for how many pictures it was taken */
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
  if (away) knock();
});
/** Asks until the studio is back: what failed may have been one request, and nothing else be on its way. */
async function knock() {
  while (!online.peek() && !locked.peek()) {
    await new Promise((wake) => setTimeout(wake, 1500));
    await loadProject();
  }
}
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
  return { screen: known, name: decoded(name), query: new URLSearchParams(query) };
}

/** @param {string} name @returns {string} without its escapes; as it is if they are none, as in "100%" typed by hand */
export function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
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

/** Where the focus goes when what had it goes. */
export const toPictures = () => /** @type {HTMLElement | null} */ (document.querySelector("main [tabindex='0']") ?? document.querySelector("main button"))?.focus();

// --- what was said ------------------------------------------------------------------------------------------------

export const number = (/** @type {number} */ n) => n.toLocaleString("en");
const capital = (/** @type {string} */ text) => `${text[0].toUpperCase()}${text.slice(1)}`;
let lastToast = 0;
/** @param {string} text @param {{bad?: boolean, action?: Toast["action"], seconds?: number}} [how] */
export function say(text, { bad = false, action, seconds = bad ? 12 : 6 } = {}) {
  const toast = { id: ++lastToast, text: capital(text), bad, action };
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

/** What the server says of itself: a reply that a later one, or its own news, overtook is not shown. @template T @param {import("./view.js").Signal<T>} into @param {() => Promise<T>} read */
function latest(into, read) {
  let [asked, shown] = [0, 0];
  const show = (/** @type {number} */ turn, /** @type {T} */ got) => {
    if (turn > shown) [shown, into.value] = [turn, got];
    return got;
  };
  return { load: () => attempt(async () => show(++asked, await read())), hear: (/** @type {T} */ got) => show(++asked, got) };
}
export const { load: loadProject, hear: hearProject } = latest(/** @type {import("./view.js").Signal<any>} */ (project), api.getProject);
export const { load: loadLabels } = latest(/** @type {import("./view.js").Signal<any>} */ (labels), api.getLabels);

// --- answers: kept in the browser until the server has them on its disk ----------------------------------------------

const KEPT = "fewtag.answers/";
/** @type {import("./view.js").Signal<Group[]>} */
export const unsent = signal(/** @type {Group[]} */ ([]));
/** Why what waits is not taken, though the studio answers: a full disk, say. */
export const trouble = signal("");
/** Answers of this page that the server has; a list shows them already, and is not ranked anew under one's hands. */
const own = signal(0);
/** Rises with every change but these: an undo, a label, what is said in another tab or by an assistant. */
export const elsewhere = computed(() => version.value - own.value);
/** As many answers as one request may hold. */
const MOST = 1000;
let sending = /** @type {Promise<boolean> | null} */ (null);
let lastKept = 0;
/** Told for how many pictures a group was taken, once that is known; null where it was refused. @type {Map<string, (pictures: number | null) => void>} */
const fates = new Map();
/** The last ones of this page: several changes may be one of them. @type {Gesture[]} */
let gestures = [];

/** Where a project's answers are kept: the next project on this port must not get them. */
const kept = () => `${KEPT}${project.value?.id}/`;

/** @param {Group} group */
const keyOf = (group) => `${kept()}${group.at}-${group.id}`;

/** An answer that the page itself marked may be left out where somebody answered since; any other is there if its group is. @param {Answer[]} answers */
const namesOf = (answers) => {
  const sure = answers.find((each) => !each.marked);
  return sure ? [sure.id] : answers.map((each) => each.id);
};

/** @param {string[][]} ids @param {Promise<number | null>[]} fates */
function remember(ids, fates) {
  const taken = Promise.all(fates).then((all) => {
    gesture.settled = true;
    gesture.pictures = all.reduce((/** @type {number} */ sum, each) => sum + (each ?? 0), 0);
    return !all.includes(null);
  });
  /** @type {Gesture} */
  const gesture = { ids, taken, pictures: 0, settled: false, undone: false };
  gestures = [...gestures.slice(-99), gesture];
  return gesture;
}
const fateOf = (/** @type {Group} */ group) => /** @type {Promise<number | null>} */ (new Promise((done) => fates.set(group.id, done)));

/** Answers that an earlier page of this project did not see acknowledged. */
function recoverAnswers() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(kept())).sort();
  /** @type {Group[]} */
  const groups = keys.map((key) => JSON.parse(localStorage[key]));
  const here = new Set(unsent.value.map((each) => each.id));
  const earlier = groups.filter((each) => !here.has(each.id));
  const undone = new Set(groups.flatMap((each) => each.undoes?.flat() ?? []));
  for (const group of earlier)
    if (group.answers) remember([namesOf(group.answers)], [fateOf(group)]).undone = group.answers.some((each) => undone.has(each.id));
  unsent.value = [...earlier, ...unsent.value];
  if (unsent.value.length) flush();
}
const projectId = computed(() => project.value?.id);
// a studio that was away when the page was opened is known later
projectId.subscribe((id) => id && recoverAnswers());

/** Keeps something to be sent in its turn. @param {Partial<Group>} what @returns {Promise<number | null>} what became of it, once that is known */
function keep(what) {
  lastKept = Math.max(Date.now(), lastKept + 1);
  const group = { id: api.uuid(), at: `${lastKept}`, ...what };
  try {
    localStorage.setItem(keyOf(group), JSON.stringify(group));
  } catch {
    say("This browser stores nothing for the studio: do not close the page while answers wait.", { bad: true });
  }
  unsent.value = [...unsent.value, group];
  return fateOf(group);
}

/** @param {{picture: string, label: string, answer: import("./api.js").Verdict, stack?: boolean, marked?: boolean}[]} given @param {string} source */
export function answer(given, source = "click") {
  const ids = [];
  const sent = [];
  for (let first = 0; first < given.length; first += MOST) {
    const answers = given.slice(first, first + MOST).map((each) => ({ id: api.uuid(), ...each, source }));
    ids.unshift(namesOf(answers));
    sent.push(keep({ answers }));
  }
  const gesture = remember(ids, sent);
  flush();
  return gesture;
}

/** Sends what is waiting, in its order, one group at a time; true once all was taken or refused. */
export function flush() {
  sending ??= sendAll().finally(() => (sending = null));
  return sending;
}

async function sendAll() {
  while (unsent.value.length) {
    const group = unsent.value[0];
    let [taken, fresh, pictures] = [true, 0, 0];
    /** @type {api.Undone[]} */
    let undone = [];
    try {
      if (group.undoes) undone = await turn("undo", group.undoes);
      else {
        const reply = await api.sendAnswers(/** @type {Answer[]} */ (group.answers));
        [fresh, pictures] = [reply.undo ? 1 : 0, reply.pictures];
      }
    } catch (problem) {
      if (!(problem instanceof api.Problem)) throw problem;
      const { status, message } = problem;
      if (status === 401) locked.value = message;
      // a studio that was just started knows its pictures one after the other
      const early = status === 404 && (await loadProject())?.indexing;
      if (early || status === 0 || status === 401 || status === 429 || status >= 500) {
        online.value = status !== 0;
        trouble.value = status === 429 || status >= 500 ? capital(message).replace(/\.?$/, ".") : "";
        setTimeout(flush, 1500);
        return false;
      }
      taken = false;
      say(message, { bad: true });
    }
    localStorage.removeItem(keyOf(group));
    batch(() => {
      online.value = true;
      trouble.value = "";
      unsent.value = unsent.value.filter((each) => each.id !== group.id);
      own.value += fresh;
      if (!taken) returns.value += 1; // what is shown was not taken
    });
    fates.get(group.id)?.(taken ? pictures : null);
    fates.delete(group.id);
    await tell("undo", undone);
  }
  loadProject();
  loadLabels();
  return true;
}

// --- undo -------------------------------------------------------------------------------------------------------------

/** What waits until hands rest, and how it is taken back meanwhile. @type {Map<string, {timer: number, back: () => void}>} */
const resting = new Map();
/** Does something once keys and slider rest: held down, they would be an undo for every step. @param {string} key @param {() => void} run @param {() => void} back */
export function rest(key, run, back) {
  const before = resting.get(key);
  clearTimeout(before?.timer);
  resting.delete(key);
  const timer = setTimeout(() => {
    resting.delete(key);
    run();
  }, 400);
  resting.set(key, { timer, back: before?.back ?? back });
}

/** Takes changes back, or does them again, each by ids one of which it has: one that never arrived (404) has none. @param {"undo" | "redo"} which @param {string[][]} changes */
async function turn(which, changes) {
  const done = [];
  for (const ids of changes)
    for (const id of ids) {
      const turned = await api[which](id).catch((problem) => {
        if (problem.status !== 404) throw problem;
      });
      if (turned) {
        done.push(turned);
        break;
      }
    }
  return done;
}

/** Says what was taken back, or done again, and offers the contrary. @param {"undo" | "redo"} which @param {api.Undone[]} done */
async function tell(which, done) {
  if (!done.length) return;
  await Promise.all([loadLabels(), loadProject()]);
  const answers = done.reduce((sum, each) => sum + each.undone.length, 0);
  const text = done[0].what.replace(/^[\d,]+ answers\b/, `${number(answers)} answers`);
  const other = which === "undo" ? "redo" : "undo";
  const ids = done.map((each) => [each.id]).reverse();
  const run = async () => tell(other, (await attempt(() => turn(other, ids))) ?? []);
  say(`${text}.`, { action: { text: which === "undo" ? "Redo" : "Undo", run } });
}

/** Takes back a gesture, whatever was done since; it waits its turn where the studio is away. @param {Pick<Gesture, "ids" | "undone">} gesture */
export async function takeBack(gesture) {
  if (gesture.undone) return;
  gesture.undone = true;
  keep({ undoes: gesture.ids });
  if (!(await flush())) say("It is taken back as soon as the studio takes it.");
}

/** @param {"undo" | "redo"} which */
async function turnBack(which) {
  const [key, waiting] = [...resting].at(-1) ?? [];
  if (which === "undo" && key && waiting) {
    clearTimeout(waiting.timer);
    resting.delete(key);
    return waiting.back();
  }
  if (!(await flush())) {
    // whether it arrived is not known: it is sent again, and taken back behind that
    const last = gestures.findLast((each) => !each.settled && !each.undone);
    return which === "undo" && last ? takeBack(last) : undefined;
  }
  const first = await attempt(() => api[which]());
  if (!first) return;
  const turned = new Set(first.undone.map((each) => each.id));
  // one gesture may have been several changes
  const gesture = gestures.find(({ ids }) => ids.length > 1 && ids.flat().some((id) => turned.has(id)));
  const others = (gesture?.ids ?? []).filter((ids) => !ids.some((id) => turned.has(id)));
  await tell(which, [first, ...((await attempt(() => turn(which, others))) ?? [])]);
  if (gesture) gesture.undone = which === "undo";
}
export const undo = () => turnBack("undo");
export const redo = () => turnBack("redo");

/** Says what became of a label, and offers to undo that change. @param {string} text @param {string | null | undefined} id */
export async function sayChange(text, id) {
  await Promise.all([loadLabels(), loadProject()]);
  const change = { ids: [[id ?? ""]], undone: false };
  say(text, id ? { action: { text: "Undo", run: () => takeBack(change) } } : {});
}

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
    void this.version.value; // who draws it draws it anew when a page comes
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

  /** The digests of many cells, read page by page: asked for at once they would hold up whatever else is said. @param {number} first @param {number} end */
  async readOn(first, end) {
    const digests = [];
    for (let place = first; place < end; place += PAGE) {
      const stop = Math.min(end, place + PAGE);
      if (end - first > 5 * PAGE) say(`Reading ${number(place)} of ${number(end)}…`);
      await this.need(place, stop);
      // now: pages that are not on the screen go when the list is read again
      for (let at = place; at < stop; at++) digests.push(this.at(at)?.digest);
    }
    return digests.filter((digest) => digest !== undefined);
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
  refresh(first, end) {
    this.asked = new Map();
    // what is on the screen stays until the new is there
    for (const page of this.pages.keys()) if (page < Math.floor(first / PAGE) || page * PAGE >= end) this.pages.delete(page);
    return this.need(first, end);
  }

  /** Where a picture is among those that were read; −1 where it is not. @param {string | undefined} digest */
  placeOf(digest) {
    for (const [page, cells] of this.pages) {
      const place = cells.findIndex((cell) => cell.digest === digest);
      if (place >= 0) return page * PAGE + place;
    }
    return -1;
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
export const walk = signal({ at: /** @type {(place: number) => string | undefined} */ (() => undefined), need: /** @type {((place: number) => Promise<unknown>) | undefined} */ (undefined), total: 0, place: 0, back: "#/", top: 0 });
