/** A request as a curl command and as a Python program. */

import { formText } from "./api.js";

const WIDTH = 72;
const SAFE = /^[\w@%+=:,./-]+$/;

/**
 * @param {{task: string, body: object, images: {name: string}[]}} request
 * @param {{baseUrl: string, hasKey: boolean}} server
 */
export function curl({ task, body, images }, { baseUrl, hasKey }) {
  const isStream = body.stream === true;
  const parts = [`curl ${isStream ? "-N " : ""}${quoted(`${baseUrl}v1/${task}`)}`];
  if (hasKey) parts.push('-H "authorization: Bearer $TRIPTYCH_API_KEY"');
  if (images.length) {
    for (const { name } of images) parts.push(`-F ${quoted(`images=@${formName(name)}`)}`);
    for (const [field, value] of Object.entries(body)) {
      for (const one of [value].flat().map(formText)) parts.push(`${formFlag(one)} ${quoted(`${field}=${one}`)}`);
    }
  } else {
    parts.push("-H 'content-type: application/json'", `-d ${quoted(json(body))}`);
  }
  return parts.join(" \\\n  ");
}

/** JSON on one line where it is short, else one line for each field. */
function json(body) {
  const line = JSON.stringify(body);
  if (line.length <= WIDTH) return line;
  const fields = Object.entries(body).map(([name, value]) => `    "${name}": ${JSON.stringify(value)}`);
  return `{\n${fields.join(",\n")}\n  }`;
}

/** curl reads `@file`, `<file` and `;type=` in a form's value unless it is told not to. */
function formFlag(value) {
  return /^[@<"]|;/.test(value) ? "--form-string" : "-F";
}

function formName(name) {
  return /[;,"\\]/.test(name) ? `"${name.replace(/["\\]/g, "\\$&")}"` : name;
}

function quoted(text) {
  return SAFE.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/**
 * @param {{task: string, body: object, images: {name: string}[]}} request
 * @param {{baseUrl: string, hasKey: boolean}} server
 * @param {{input: string, result: string}} form `input`: the field that is the first argument;
 *   `result`: expression of one `item`.
 */
export function python({ task, body, images }, { baseUrl, hasKey }, { input, result }) {
  const { stream, ...fields } = body;
  const values = images.length ? { images: images.map(({ name }) => name), ...fields } : fields;
  if (images.length === 1) values.images = images[0].name;
  const given = Object.entries(values).map(([name, value]) =>
    name === input ? [null, argument(value)] : [name, argument(value)],
  );
  given.sort(([a], [b]) => (a === null ? -1 : 0) - (b === null ? -1 : 0));
  const method = task.replaceAll("-", "_") + (stream ? "_stream" : "");
  const call = laidOut(`client.${method}`, given.map(([name, value]) => (name ? `${name}=${value}` : value)));
  const key = hasKey ? ', api_key=os.environ["TRIPTYCH_API_KEY"]' : "";
  const [loop, print] = stream
    ? [call, 'print(item.text, end="", flush=True)']
    : [`${call}.data`, `print(${result})`];
  return [
    ...(hasKey ? ["import os", ""] : []),
    "from triptych import Client",
    "",
    `with Client("${baseUrl.replace(/\/$/, "")}"${key}) as client:`,
    `    for item in ${loop}:`,
    `        ${print}`,
  ].join("\n");
}

function laidOut(callee, parts) {
  const line = `${callee}(${parts.join(", ")})`;
  if (line.length <= WIDTH && !line.includes("\n")) return line;
  return `${callee}(\n${parts.map((part) => `        ${part},\n`).join("")}    )`;
}

/** A literal; a long list has one line for each item. */
function argument(value) {
  const line = literal(value);
  if (!Array.isArray(value) || line.length <= WIDTH) return line;
  return `[\n${value.map((item) => `            ${literal(item)},\n`).join("")}        ]`;
}

/** A JSON value as a Python literal. */
export function literal(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") {
    const pairs = Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one)}`);
    return `{${pairs.join(", ")}}`;
  }
  return JSON.stringify(value);
}
