// Types of view.js: what the pages use of Preact, htm and signals, and no more.
export type View = object | string | number | boolean | null | undefined | View[];
export interface Signal<T> {
  value: T;
  peek(): T;
  subscribe(listener: (value: T) => void): () => void;
}
export function html(strings: TemplateStringsArray, ...values: unknown[]): View;
export function render(view: View, parent: Element): void;
export function signal<T>(value: T): Signal<T>;
export function useSignal<T>(value: T): Signal<T>;
export function computed<T>(read: () => T): Readonly<Signal<T>>;
export function effect(run: () => void | (() => void)): () => void;
export function batch<T>(run: () => T): T;
export function useEffect(run: () => void | (() => void), inputs?: unknown[]): void;
export function useLayoutEffect(run: () => void | (() => void), inputs?: unknown[]): void;
export function useMemo<T>(make: () => T, inputs: unknown[]): T;
export function useRef<T extends Element>(value: null): { current: T | null };
export function useRef<T>(value: T): { current: T };
export function useState<T>(value: T | (() => T)): [T, (value: T | ((old: T) => T)) => void];
