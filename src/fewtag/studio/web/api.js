// The HTTP API as functions: one per action, answers as plain objects, every refusal a Problem with one sentence.

/** @typedef {"yes" | "no" | "unknown"} Verdict */
/** @typedef {{label: string, p: number, state: "yes" | "no" | "model"}} Tag */
/** @typedef {{digest: string, name: string, width: number, height: number, p: number | null, tags: Tag[], stack: number, marked?: boolean}} Cell */
/** @typedef {{total: number, members: number, offset: number, query_means: {text: string, as: string, detail: string}[], pictures: Cell[]}} Page */
/** @typedef {{name: string, means: string | null, examples: number, absent: number, threshold: number | null, tags?: number, waiting?: number, expected_precision?: number | null, undo?: string | null}} Label `undo`: the id of the change that it is the reply to */
/** @typedef {{id: string, name: string, pictures: number, indexed: number, failures: number, folders: string[], labels: number, answers: number, can_undo: boolean, can_redo: boolean, version: number, indexing: boolean, notice: string, files: number}} Project */
/** @typedef {{id: string, picture: string, label: string, answer: Verdict, source: string, stack?: boolean, marked?: boolean}} Answer `stack`: it holds for all pictures of the stack; `marked`: by the page itself */
/** @typedef {{threshold: number, tags: number, expected_precision: number | null, recall: number | null}} Point */
/** @typedef {{edges: number[], model: number[], yes: number[], no: number[]}} Histogram */
/** @typedef {{label: string, version: number, order: string, question: string, pictures: Cell[], left: number, answered: {yes: number, no: number, unknown: number}, threshold: number, curve: Point[], histogram: Histogram, audited: {precision: number, low: number, high: number, count: number} | null, enough: string, examples: {digest: string, influence: number | null}[], mistaken_for: {label: string, count: number}[], settled: boolean}} ReviewPage `settled`: influences are worked out as far as they will be */
/** @typedef {{label: string, p: number, threshold: number, answer: Verdict | null, because: {digest: string, weight: number}[]}} Belief */
/** @typedef {{digest: string, name: string, path: string, width: number, height: number, taken: string | null, bytes: number, labels: Belief[], stack: string[], would_write: string[]}} Detail */
/** @typedef {{id: string, kind: string, state: "running" | "done" | "failed" | "cancelled", done: number, total: number, detail: string | null, result: any}} Job */
/** @typedef {{query?: string, like?: string, box?: number[], stacked?: boolean}} Search */

/** A refusal, or no answer at all (`status` 0). Its message is the server's one sentence. */
export class Problem extends Error {
  /** @param {string} message @param {number} status */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** A random UUID; `crypto.randomUUID` is missing where the page is not on the loopback. */
export function uuid() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 15) | 64;
  bytes[8] = (bytes[8] & 63) | 128;
  const digits = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return digits.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

/**
 * @param {string} method @param {string} path @param {any} [body] @param {Record<string, string>} [headers]
 * @returns {Promise<any>}
 */
async function call(method, path, body, headers = {}) {
  /** @type {RequestInit} */
  const request = { method, headers: { "X-Fewtag": "1", ...headers }, credentials: "same-origin" };
  if (body !== undefined) {
    request.body = JSON.stringify(body);
    request.headers = { ...request.headers, "Content-Type": "application/json" };
  }
  let reply;
  let said = null;
  try {
    reply = await fetch(path, request);
    if (reply.status === 204) return reply.headers.get("Fewtag-Undo");
    said = await reply.json();
  } catch {
    // a reply that broke off is none; a refusal may have no sentence
    if (!reply || reply.ok) throw new Problem("The studio does not answer; start it again, nothing you said is lost.", 0);
  }
  if (!reply.ok) throw new Problem(said?.detail ?? said?.title ?? `The studio refused this (${reply.status}).`, reply.status);
  return said;
}

const of = encodeURIComponent;
/** @param {string} path @param {any} body */
const post = (path, body) => call("POST", path, body, { "Idempotency-Key": uuid() });

/** @param {string} token */
export const openSession = (token) => call("POST", "/v1/session", undefined, { Authorization: `Bearer ${token}` });
/** @returns {Promise<Project>} */
export const getProject = () => call("GET", "/v1/project");
/** @returns {Promise<Label[]>} */
export const getLabels = async () => (await call("GET", "/v1/labels")).labels;
/** @param {string} name @param {boolean} words @returns {Promise<Label>} */
export const define = (name, words) => post("/v1/labels", { name, words });
/** @param {string} name @param {string[]} pictures @param {boolean} stacks each for its whole stack @returns {Promise<Label>} */
export const teach = (name, pictures, stacks) => post(`/v1/labels/${of(name)}/examples`, { pictures, stacks });
/** @param {string} name @param {{name?: string, merge?: boolean, threshold?: number | null}} change @returns {Promise<Label>} */
export const change = (name, change) => call("PATCH", `/v1/labels/${of(name)}`, change);
/** @param {string} name @returns {Promise<string>} the id of the change */
export const forget = (name) => call("DELETE", `/v1/labels/${of(name)}`);
/** Each answer has its own id: sent again, it is the same answer. @param {Answer[]} answers @returns {Promise<{acknowledged: string[], undo: string | null, pictures: number}>} */
export const sendAnswers = (answers) => post("/v1/answers", { answers });
/** @typedef {{id: string, what: string, undone: {id: string, picture: string, label: string, was: Verdict | null, now: Verdict | null}[], left: number}} Undone */
/** The last change, or the one with this id or with an answer of this id. @param {string} [id] @returns {Promise<Undone>} */
export const undo = (id) => post("/v1/undo", { id });
/** @param {string} [id] @returns {Promise<Undone>} */
export const redo = (id) => post("/v1/redo", { id });
/** @param {Search & {offset: number, limit: number}} wanted @returns {Promise<Page>} */
export const search = ({ query, like, offset, limit, ...how }) =>
  // the first page of all pictures by its defaults: what a studio that was just started answers first
  query || like || offset ? call("POST", "/v1/search", { query, like, offset, limit, ...how }) : call("GET", "/v1/pictures");
/** All that is found, at once. @param {Search} wanted @returns {Promise<{total: number, digests: string[]}>} */
export const digests = (wanted) => call("POST", "/v1/search", { ...wanted, only: "digests" });
/** @param {string} digest @returns {Promise<Detail>} */
export const getPicture = (digest) => call("GET", `/v1/pictures/${digest}`);
/** @param {string} label @param {string} order @param {number} size @returns {Promise<ReviewPage>} */
export const getReview = (label, order, size) => call("GET", `/v1/review?label=${of(label)}&order=${order}&size=${size}`);
/** @returns {Promise<{name: string, reason: string}[]>} */
export const getFailures = async () => (await call("GET", "/v1/failures")).failures;
/** Looks through the folders again, for what is new and what could not be read. */
export const rescan = () => post("/v1/rescan", {});
/** @param {{format: string, confirmed_only?: boolean, scores?: boolean, take_back?: boolean, dry_run: boolean}} wanted @returns {Promise<any>} */
export const deliver = (wanted) => post("/v1/deliver", wanted);
/** @param {string} id @returns {Promise<Job>} */
export const getJob = (id) => call("GET", `/v1/jobs/${of(id)}`);

/** @param {string} digest @param {256 | 1024} size */
export const thumbnail = (digest, size = 256) => `/v1/pictures/${digest}/thumbnail?size=${size}`;
/** @param {string} digest @param {string} label @param {boolean} atOnce a first glance, while the map is worked out */
export const heat = (digest, label, atOnce) => `/v1/pictures/${digest}/heat?label=${of(label)}&at_once=${atOnce}`;
