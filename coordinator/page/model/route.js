// Which view an address names. Pure.

// The first of [[pattern, page, view]] that the hash matches, as {page, view, parameters}. null: it
// matches none, or has a % that encodeURIComponent never writes.
export function routeOf(hash, routes) {
  for (const [pattern, page, view] of routes) {
    const match = pattern.exec(hash);
    if (!match) continue;
    try {
      return {page, view, parameters: match.slice(1).map(decodeURIComponent)};
    } catch (error) {
      if (error instanceof URIError) return null;
      throw error;
    }
  }
  return null;
}
