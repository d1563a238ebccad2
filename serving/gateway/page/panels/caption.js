/** `caption`: pictures in words, and where the network looked for each word. */

import { attentionPicture, pictureImage } from "../components/attention_picture.js";
import { checkField, fieldRow, numberField, textField } from "../components/fields.js";
import { samplingFields } from "../components/generation_fields.js";
import { pictureField } from "../components/picture_input.js";
import { InputError, itemProblem } from "../components/problem.js";
import { cutHint } from "../components/stream_view.js";
import { wordRow } from "../components/word_row.js";
import { el } from "../dom.js";
import { isEnd, joinWeights, words } from "../words.js";

function create() {
  const pictures = pictureField();
  const attention = checkField("Show the attention of each word", {
    field: "return_attention",
    value: true,
  });
  const prompt = textField("First words", { field: "prompt" });
  const beams = numberField("Beams", { field: "num_beams", min: 1, max: 16, step: 1 });
  const tokens = numberField("Tokens at most", { field: "max_new_tokens", min: 1, step: 1 });
  const count = numberField("Captions", { field: "n", min: 1, max: 16, step: 1, placeholder: "1" });
  const temperature = numberField("Temperature", { field: "temperature", min: 0, max: 2, step: 0.1 });
  const sampling = samplingFields();

  return {
    fields: [pictures.element, attention.element],
    options: [prompt.element, fieldRow(beams, tokens, count), fieldRow(temperature, ...sampling.fields)],
    ready: pictures.ready,
    request() {
      const images = pictures.value;
      if (!images.length) throw new InputError("choose a picture", "images");
      return {
        images,
        body: {
          prompt: prompt.value || null,
          num_beams: beams.value,
          max_new_tokens: tokens.value,
          n: count.value,
          temperature: temperature.value,
          ...sampling.value(temperature.value !== 0),
          return_attention: attention.value || null,
        },
      };
    },
    show: (data, { images }) =>
      el("div", { class: "items" }, ...data.map((item) => view(item, images[item.index]))),
    summary: (data) => data.map((item) => item.text ?? "no caption").join(" "),
  };
}

function view(item, picture) {
  if (item.error) return el("article", {}, pictureImage(picture), itemProblem(item.error));
  if (!item.attention) {
    return el(
      "article", { class: "captioned" },
      pictureImage(picture), el("div", {}, el("p", { class: "text" }, item.text), cutHint(item), others(item)),
    );
  }
  const { tokens, grid, weights } = item.attention;
  const shown = words(tokens).filter(({ text }) => !isEnd(text));
  const lines = joinWeights(weights, shown, null);
  const [rows, columns] = grid;
  const attended = attentionPicture(picture, { rows, columns });
  const texts = shown.map(({ text }) => text);
  const readout = el("p", { class: "readout", "aria-live": "polite" }, HINT);
  const row = wordRow(texts, {
    label: "Words of the caption",
    onActive(index) {
      attended.show(index === null ? null : lines[index]);
      readout.textContent = index === null ? HINT : inWords(texts[index], lines[index], rows, columns);
    },
  });
  return el(
    "article", { class: "captioned" },
    attended.element,
    el(
      "div", {},
      el("p", { class: "text" }, item.text), cutHint(item), others(item), row.element, readout,
      everyWord(picture, texts, lines, { rows, columns }),
    ),
  );
}

/** The captions after the best, where several were requested. */
function others(item) {
  const texts = (item.alternatives ?? []).slice(1).map(({ text }) => el("li", {}, text));
  return texts.length ? el("ol", { class: "others", start: 2 }, ...texts) : null;
}

const HINT = "Point at a word, or move to it with Tab and the arrow keys; a click holds it.";

/** One small picture for each word, as in figure 5 of arXiv 1502.03044. */
function everyWord(picture, texts, lines, grid) {
  const details = el("details", { class: "every-word" }, el("summary", {}, "Every word at once"));
  details.addEventListener("toggle", () => {
    if (details.querySelector("ol")) return;
    const figures = texts.map((text, at) => {
      const small = attentionPicture({ ...picture, name: "" }, grid);
      small.show(lines[at]);
      return el("li", {}, small.element, el("span", {}, text));
    });
    details.append(el("ol", {}, ...figures));
  });
  return details;
}

function inWords(text, weights, rows, columns) {
  const most = weights.indexOf(Math.max(...weights));
  const [row, column] = [Math.floor(most / columns), most % columns];
  return `“${text}” looks most at the ${place(row, rows, column, columns)} of the picture`;
}

/** A region in words: thirds of the height and of the width. */
function place(row, rows, column, columns) {
  const third = (at, count) => Math.min(2, Math.floor(((at + 0.5) / count) * 3));
  const vertical = ["top", "middle", "bottom"][third(row, rows)];
  const horizontal = ["left", "centre", "right"][third(column, columns)];
  return vertical === "middle" && horizontal === "centre" ? "centre" : `${vertical} ${horizontal}`;
}

export default {
  task: "caption",
  title: "Caption",
  lead: "A picture in words, and the regions that each word came from.",
  action: "Describe",
  code: { input: "images", result: "item.text" },
  refusable: ["return_attention"],
  create,
};
