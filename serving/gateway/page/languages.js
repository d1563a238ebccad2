/** Names of languages. */

const NAMES = new Intl.DisplayNames(["en"], { type: "language" });

/** `es` → Spanish; a code that has no name stays as it is. */
export function languageName(code) {
  try {
    return NAMES.of(code.replaceAll("_", "-"));
  } catch {
    return code;
  }
}
