/** A picture with attention over its regions: the more weight a region has, the less it is dimmed. */

import { el } from "../dom.js";

const DIM = 0.82;
const SMALL_PIXELS = 200;

/**
 * @param {{url: string, name: string}} picture
 * @param {{rows: number, columns: number}} grid
 * @returns {{element: HTMLElement, show: (weights: number[]|null) => void}} `show` takes one
 *   weight for each region, row by row; null shows the whole picture.
 */
export function attentionPicture(picture, { rows, columns }) {
  const image = pictureImage(picture);
  const veil = el("canvas", { class: "veil", width: columns, height: rows, "aria-hidden": "true" });
  const context = veil.getContext("2d");
  const element = el("div", { class: "attended" }, image, veil);

  /** One pixel for each region, enlarged smoothly by the browser; black, and more or less opaque. */
  function show(weights) {
    const most = weights ? Math.max(...weights) : 0;
    const pixels = context.createImageData(columns, rows);
    for (let at = 0; at < rows * columns; at += 1) {
      const share = most > 0 ? weights[at] / most : 1;
      pixels.data[4 * at + 3] = Math.round(255 * DIM * (1 - share));
    }
    context.putImageData(pixels, 0, 0);
  }

  show(null);
  return { element, show };
}

/** An image element; a small picture is enlarged without blurring it. */
export function pictureImage({ url, name }) {
  const image = el("img", { src: url, alt: name });
  image.addEventListener("load", () => {
    image.classList.toggle("pixels", image.naturalWidth < SMALL_PIXELS);
  });
  return image;
}
