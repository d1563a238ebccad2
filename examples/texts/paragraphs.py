"""A short Spanish text inside the example world, for demonstrations, with its translation."""

SPANISH = """\
Mi hermana trabaja en un restaurante famoso. Este restaurante tiene buena comida. \
Todos los días mi hermana prepara pescado fresco. Hay veinte mesas en el jardín.

¿Dónde está el gato negro de Pedro? El gato está durmiendo en la cocina. \
Mañana vamos a viajar a Londres. El mundo no es suficiente."""

ENGLISH = """\
My sister works in a famous restaurant. This restaurant has good food. \
Every day my sister prepares fresh fish. There are twenty tables in the garden.

Where is Pedro's black cat? The cat is sleeping in the kitchen. \
Tomorrow we are going to travel to London. The world is not enough."""
