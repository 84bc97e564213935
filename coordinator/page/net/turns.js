// A browser opens six connections to one host, for all its windows together, and a stream holds
// one. So all windows share four places for streams, and take turns where there are more streams:
// two connections are left for everything else.

const PLACES = Array.from({length: 4}, (_, i) => `meshrun-stream-${i}`);
// How long a stream keeps its place while another waits for it.
const TURN_MS = 3000;

// Waits for a place. Resolves with a function that gives it back, and rejects when `signal` aborts
// before. `turnIsOver` is called when another stream has waited for this place.
export async function takePlace(signal, turnIsOver) {
  // Browsers have locks only where the page came over TLS or from this machine.
  if (!navigator.locks) return () => {};
  for (const place of PLACES) {
    const giveBack = await hold(place, {ifAvailable: true}, turnIsOver);
    if (giveBack) return giveBack;
  }
  const waiting = await waitingFor();
  const [shortest] = PLACES.toSorted((a, b) => waiting(a) - waiting(b));
  return hold(shortest, {signal}, turnIsOver);
}

// A function that gives the place back. null: it is not available.
function hold(place, options, turnIsOver) {
  return new Promise((resolve, reject) => {
    const held = (lock) => {
      if (!lock) return void resolve(null);
      return new Promise((release) => {
        const watching = setInterval(async () => {
          const waiting = await waitingFor();
          if (waiting(place)) turnIsOver();
        }, TURN_MS);
        resolve(() => {
          clearInterval(watching);
          release();
        });
      });
    };
    navigator.locks.request(place, options, held).catch(reject);
  });
}

// How many streams wait for a place, by its name.
async function waitingFor() {
  const {pending} = await navigator.locks.query();
  return (place) => pending.filter(({name}) => name === place).length;
}
