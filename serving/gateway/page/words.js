/** Tokens joined to words, with their attention weights. */

const LANGUAGE = /^([a-z]{2,3}_[A-Za-z]{2,4}|>>.+<<|__[a-z]+__)$/;
const END = /^(<\/s>|<\|[^|]*\|>|\[[A-Z]+\]|<[a-z]+>)$/;

/**
 * Groups of token indices, one for each word.
 *
 * A token with a leading space begins a word, and so do punctuation, an end, a language code, and
 * what follows them. Where no token has a leading space, tokens are not joined.
 *
 * @param {string[]} tokens
 * @returns {{text: string, tokens: number[]}[]}
 */
export function words(tokens) {
  const isSpaced = tokens.some((token) => /^\s/.test(token));
  const groups = [];
  for (const [index, token] of tokens.entries()) {
    const text = token.trim();
    if (text === "") continue;
    const last = groups.at(-1);
    const begins = !last || !isSpaced || /^\s/.test(token) || isMark(text) || isMark(last.text);
    if (begins) groups.push({ text, tokens: [index] });
    else {
      last.text += text;
      last.tokens.push(index);
    }
  }
  return groups;
}

/** Whether a token marks the end of a text, as `</s>` does. */
export function isEnd(token) {
  return END.test(token.trim());
}

function isMark(text) {
  return END.test(text) || LANGUAGE.test(text) || /^[.,;:!?¿¡()"«»…]+$/.test(text);
}

/**
 * Weights of words from weights of tokens: the mean of a word's rows, the sum of its columns.
 * Rows that sum to 1 keep that sum.
 *
 * @param {number[][]} weights Rows × columns, of tokens.
 * @param {{tokens: number[]}[]} rows
 * @param {{tokens: number[]}[]|null} columns null: columns are kept.
 * @returns {number[][]}
 */
export function joinWeights(weights, rows, columns) {
  return rows.map(({ tokens }) => {
    const mean = weights[0].map((_, column) => {
      const sum = tokens.reduce((total, row) => total + weights[row][column], 0);
      return sum / tokens.length;
    });
    if (columns === null) return mean;
    return columns.map((group) => group.tokens.reduce((total, column) => total + mean[column], 0));
  });
}
