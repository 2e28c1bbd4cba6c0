// Keys: one table for what they do and for the page that lists them.
import { dialog, redo, undo } from "./store.js";

/** @typedef {{keys: string[], says: string, run: (event: KeyboardEvent) => unknown}} Key */

/** Keys of every screen. @type {Key[]} */
const EVERYWHERE = [
  { keys: ["Backspace", "ctrl-z"], says: "Undo", run: () => undo() },
  { keys: ["ctrl-shift-z", "ctrl-y"], says: "Redo", run: () => redo() },
  { keys: ["/"], says: "Search", run: () => /** @type {HTMLInputElement | null} */ (document.getElementById("search"))?.select() },
  { keys: ["d"], says: "Deliver the tags", run: () => (dialog.value = "deliver") },
  { keys: ["?"], says: "All keys", run: () => (dialog.value = dialog.value === "keys" ? "" : "keys") },
];

/** Those of the screen that is shown. @type {Key[]} */
let here = [];
/** @param {Key[]} keys */
export const useKeys = (keys) => void (here = keys);
/** For the page of all keys. */
export const listKeys = () => ({ here, everywhere: EVERYWHERE });

/** @type {Record<string, string>} */
const BRACKETS = { BracketLeft: "[", BracketRight: "]" };
const OTHER_SCRIPT = /^(?!\p{Script=Latin})[\p{L}\p{M}]|^(?!\d)\p{Nd}/u;

/** An event's key in small letters; on a keyboard of another script, what a Latin one has in its place. @param {KeyboardEvent} event */
export const latin = ({ key, code }) =>
  ((OTHER_SCRIPT.test(key) && (/^(?:Key|Digit)(.)$/.exec(code)?.[1] ?? BRACKETS[code])) || key).toLowerCase();

/** "ctrl-shift-z" of an event; the command key of a Mac counts as ctrl. @param {KeyboardEvent} event */
function nameOf(event) {
  const key = event.key === " " ? "Space" : latin(event).length === 1 ? latin(event) : event.key;
  const shift = event.shiftKey && (event.key.length > 1 || event.ctrlKey || event.metaKey);
  return `${event.ctrlKey || event.metaKey ? "ctrl-" : ""}${shift ? "shift-" : ""}${key}`;
}

const TYPING = "input:not([type=range]):not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]";

/** @param {KeyboardEvent} event */
function press(event) {
  const target = /** @type {Element} */ (event.target);
  if (event.altKey || event.defaultPrevented || target.matches?.(TYPING)) return;
  const name = nameOf(event);
  if (document.querySelector("dialog[open]") && name !== "?") return;
  // Enter and Space press the button that has the focus; only in a grid do they mean what the screen says
  const button = target.closest?.("button, a, summary, input");
  if ((name === "Enter" || name === "Space") && button && !button.closest("[data-grid]")) return;
  if (target.matches?.("input[type=range]") && name.startsWith("Arrow")) return;
  const found = [...here, ...EVERYWHERE].find((key) => key.keys.includes(name));
  if (!found || (event.repeat && !name.startsWith("Arrow") && !"jk[]".includes(name))) return;
  event.preventDefault();
  found.run(event);
}

addEventListener("keydown", press);
// a button would be clicked when Space comes up
addEventListener("keyup", (event) => {
  if (event.key === " " && /** @type {Element} */ (event.target).closest?.("[data-grid]")) event.preventDefault();
});
