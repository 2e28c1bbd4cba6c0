// The one door to what is vendored: components as functions, templates as tagged strings, state as signals.
import htm from "./vendor/htm.js";
import { h } from "./vendor/preact.js";

export { render } from "./vendor/preact.js";
export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export { batch, computed, effect, signal, useSignal } from "./vendor/signals.js";
export const html = htm.bind(h);
