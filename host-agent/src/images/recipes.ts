/** The images that Warren can build, by name. */
import type { Build } from './build.ts'
import { linkBusybox, type MadeRoot, makeDebianRoot } from './debian.ts'
import { makeDevbox } from './devbox.ts'
import type { ToolName } from './tools.ts'

export type Recipe = {
  /** For display. */
  source: string
  /** Tools needed in addition to those of every image. */
  tools: readonly ToolName[]
  make: (build: Build) => Promise<MadeRoot>
}

export const RECIPES: Readonly<Record<string, Recipe>> = {
  'debian:13': { source: 'Debian trixie by mmdebstrap', tools: [], make: makeDebian13 },
  'devbox:1': {
    source: 'Debian trixie by mmdebstrap, Node and bun by npm, uv by pip',
    tools: ['npm', 'tar'],
    make: makeDevbox,
  },
}

/** The default image. The first start waits for it, so it is minimal. */
async function makeDebian13(build: Build): Promise<MadeRoot> {
  const made = await makeDebianRoot(build, { suite: 'trixie', packages: ['busybox', 'ca-certificates', 'curl'] })
  await linkBusybox(build, made.root)
  return made
}
