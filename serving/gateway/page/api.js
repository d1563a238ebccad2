/** Requests to the gateway that served the page, and their failures in words. */

import { apiKey } from "./key.js";
import { events } from "./sse.js";

/** URL of the gateway, with the prefix of a proxy if there is one; ends with a slash. */
export const BASE_URL = new URL("../", import.meta.url).href;

/** A response with an error status, or an `error` event of a stream. */
export class ApiError extends Error {
  /**
   * @param {number} status HTTP status; that of the stream's start for an event.
   * @param {{type?: string, message?: string, field?: string}} error
   * @param {number|null} retryAfter Seconds.
   */
  constructor(status, error, retryAfter = null) {
    super(error.message ?? `the server answered with status ${status}`);
    this.name = "ApiError";
    this.status = status;
    this.type = error.type ?? null;
    this.field = error.field ?? null;
    this.retryAfter = retryAfter;
  }
}

/** No response: no connection, or it broke. */
export class NetworkError extends Error {
  constructor(cause) {
    super("The server cannot be reached, or the connection broke.", { cause });
    this.name = "NetworkError";
  }
}

/** The served models. */
export async function listModels() {
  const response = await send("v1/models", {});
  return (await response.json()).data;
}

/** The stored glossaries, without their terms. */
export async function listGlossaries() {
  const response = await send("v1/glossaries", {});
  return (await response.json()).data;
}

/**
 * The response of a task.
 *
 * @param {{task: string, body: object, images: {name: string, blob: Blob}[]}} request
 * @param {AbortSignal} signal
 */
export async function call(request, signal) {
  const started = performance.now();
  const response = await send(...posted(request, signal));
  const body = await whole(response.json());
  return { body, timings: timings(response, started) };
}

/**
 * The chunks of a task's streamed response. Aborting the signal ends the request.
 *
 * @returns {AsyncGenerator<{chunk: object, timings: object}>}
 */
export async function* stream(request, signal) {
  const started = performance.now();
  const response = await send(...posted(request, signal));
  const received = events(response.body);
  for (;;) {
    const { value: event, done } = await whole(received.next());
    if (done) throw new NetworkError(new Error("the stream has no end"));
    if (event.data === "[DONE]") return;
    const content = JSON.parse(event.data);
    if (event.event === "error") throw new ApiError(response.status, content.error);
    yield { chunk: content, timings: timings(response, started) };
  }
}

function posted({ task, body, images }, signal) {
  const path = `v1/${task}`;
  if (images.length) return [path, { method: "POST", body: form(body, images), signal }];
  const headers = { "content-type": "application/json" };
  return [path, { method: "POST", body: JSON.stringify(body), headers, signal }];
}

function form(body, images) {
  const data = new FormData();
  for (const { name, blob } of images) data.append("images", blob, name);
  for (const [field, value] of Object.entries(body)) {
    for (const one of [value].flat()) data.append(field, formText(one));
  }
  return data;
}

/** One value as a form's text: objects are JSON. */
export function formText(value) {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

async function send(path, options) {
  const headers = { ...options.headers };
  if (apiKey() !== null) headers.authorization = `Bearer ${apiKey()}`;
  const response = await whole(fetch(new URL(path, BASE_URL), { ...options, headers }));
  if (!response.ok) throw await failure(response);
  return response;
}

/** What `promise` returns; a broken connection is a NetworkError, an abort stays one. */
async function whole(promise) {
  try {
    return await promise;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new NetworkError(error);
  }
}

async function failure(response) {
  const seconds = Number.parseInt(response.headers.get("retry-after") ?? "", 10);
  const retryAfter = Number.isNaN(seconds) ? null : seconds;
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // Not from the gateway: a proxy's own page.
  }
  return new ApiError(response.status, error, retryAfter);
}

/** Milliseconds, by stage; absent where the server sent none. */
function timings(response, started) {
  const stage = (name) => {
    const value = Number.parseFloat(response.headers.get(`x-${name}-time`) ?? "");
    return Number.isNaN(value) ? null : value;
  };
  return {
    total: performance.now() - started,
    tokenization: stage("tokenization"),
    queue: stage("queue"),
    inference: stage("inference"),
  };
}
