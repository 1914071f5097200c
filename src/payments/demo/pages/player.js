/**
 * What plays: which step of which recording is shown, and when the next one is due. Draws nothing.
 *
 * @module player
 */

/** @typedef {{ name: string, title: string, frames: any[] }} Scenario */

/** How long each step stays, in milliseconds: longer captions stay longer, and the whole is `tourMs`. */
export function durations(/** @type {Scenario[]} */ scenarios, /** @type {number} */ tourMs) {
  const weights = scenarios.map(({ frames }) => frames.map(({ caption }) => 25 + caption.length));
  const whole = weights.flat().reduce((sum, each) => sum + each, 0);
  return weights.map((each) => each.map((weight) => (tourMs * weight) / whole));
}

export class Player {
  scenario = 0;
  step = 0;
  /** Forwards 1, backwards -1, standing still 0. */
  direction = 0;
  /** Whether the next scenario follows by itself. */
  touring = false;
  #stays;
  #changed;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;

  /**
   * @param {Scenario[]} scenarios
   * @param {number} tourMs
   * @param {(player: Player) => void} changed
   */
  constructor(scenarios, tourMs, changed) {
    this.scenarios = scenarios;
    this.#stays = durations(scenarios, tourMs);
    this.#changed = changed;
  }

  get frames() {
    return this.scenarios[this.scenario]?.frames ?? [];
  }

  get frame() {
    return this.frames[this.step];
  }

  get previous() {
    return this.frames[this.step - 1];
  }

  /** Show a step, and stand still. */
  show(/** @type {number} */ step, scenario = this.scenario) {
    this.#halt();
    this.#put(step, scenario);
  }

  /** Play from here; from the other end if this is the end. */
  play(direction = 1) {
    this.#halt();
    this.direction = direction;
    const end = direction > 0 ? this.frames.length - 1 : 0;
    if (this.step === end) this.#put(direction > 0 ? 0 : this.frames.length - 1, this.scenario);
    else this.#put(this.step, this.scenario);
    this.#wait();
  }

  /** Play everything, from the first step of the first scenario. */
  tour() {
    this.#halt();
    this.touring = true;
    this.direction = 1;
    this.#put(0, 0);
    this.#wait();
  }

  stop() {
    this.#halt();
    this.#changed(this);
  }

  #halt() {
    clearTimeout(this.#timer);
    this.direction = 0;
    this.touring = false;
  }

  #put(/** @type {number} */ step, /** @type {number} */ scenario) {
    this.scenario = Math.max(0, Math.min(scenario, this.scenarios.length - 1));
    this.step = Math.max(0, Math.min(step, this.frames.length - 1));
    this.#changed(this);
  }

  #wait() {
    this.#timer = setTimeout(() => this.#go(), this.#stays[this.scenario]?.[this.step]);
  }

  #go() {
    const next = this.step + this.direction;
    if (next >= 0 && next < this.frames.length) this.#put(next, this.scenario);
    else if (this.touring && this.scenario + 1 < this.scenarios.length) this.#put(0, this.scenario + 1);
    else return this.stop();
    this.#wait();
  }
}
