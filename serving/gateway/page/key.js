/** The API key: in the tab's session storage, or in memory where that is blocked. */

const NAME = "triptych-key";
let inMemory = null;

/** The key, or null. */
export function apiKey() {
  try {
    return sessionStorage.getItem(NAME) ?? inMemory;
  } catch {
    return inMemory;
  }
}

/** Keep a key until the tab is closed; null forgets it. */
export function setApiKey(key) {
  inMemory = key;
  try {
    if (key === null) sessionStorage.removeItem(NAME);
    else sessionStorage.setItem(NAME, key);
  } catch {
    // Storage is blocked: the key stays in memory.
  }
}
