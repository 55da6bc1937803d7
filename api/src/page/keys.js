// The two keys of a server, for every view of the page.

/** A tab of the browser forgets its keys when it is closed. */
const stored = (name) => sessionStorage.getItem(`${name}-key`) ?? "";
export const keys = { api: stored("api"), admin: stored("admin") };

export const keep = (name, key) => {
  keys[name] = key.trim();
  sessionStorage.setItem(`${name}-key`, keys[name]);
};

/** The headers of a request that needs the key `name`. An administrator's key may be the same as the other. */
export const headers = (name) => {
  const key = name === "admin" ? keys.admin || keys.api : keys.api;
  return key ? { authorization: `Bearer ${key}` } : {};
};

/** A route that each key opens and that costs the server nothing. */
const PROBES = { api: "v1/models", admin: "live/prefix?node=0" };

/** The server's answer to the key `name`: a word for the page's style, and a sentence. */
export const asked = async (name) => {
  try {
    const { status } = await fetch(PROBES[name], { headers: headers(name) });
    const isGiven = Boolean(headers(name).authorization);
    if (status === 401 || status === 403) return isGiven ? ["wrong", "The server refuses it."] : ["needed", "The server wants it."];
    return isGiven ? ["right", "The server takes it."] : ["none", "Not needed on this server."];
  } catch {
    return ["", "The server does not answer."];
  }
};
