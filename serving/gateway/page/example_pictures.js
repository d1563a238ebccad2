/** Pictures at hand: held-out scenes of the example world (examples/demo/pictures). */

const SCENES = [
  ["scene-1.png", "a small yellow checked circle above a small white checked cross on a green background"],
  ["scene-2.png", "a small white ring to the left of a small white striped star on a cyan background"],
  ["scene-3.png", "a large yellow checked crescent above a small purple checked diamond on a green background"],
  ["scene-4.png", "a large red heart on a black background"],
  ["scene-5.jpg", "a large orange checked crescent on a black background"],
];

export const EXAMPLE_PICTURES = SCENES.map(([name, alt]) => ({
  name,
  alt,
  url: new URL(`pictures/${name}`, import.meta.url).href,
}));

/** An example as a picture to send. */
export async function examplePicture({ name, url }) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: status ${response.status}`);
  return { name, blob: await response.blob() };
}
