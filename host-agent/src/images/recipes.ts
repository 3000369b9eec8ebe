/** The images that Warren builds itself, by name. */
import type { Build } from './build.ts'
import { linkBusybox, makeDebianRoot } from './debian.ts'
import { makeDevbox } from './devbox.ts'
import type { ToolName } from './tools.ts'

export type Recipe = {
  /** For people. */
  source: string
  /** That it needs beyond those of every image. */
  tools: readonly ToolName[]
  /** Gives the root directory. */
  make: (build: Build) => Promise<string>
}

export const RECIPES: Readonly<Record<string, Recipe>> = {
  'debian:13': { source: 'Debian trixie by mmdebstrap', tools: [], make: makeDebian13 },
  'devbox:1': { source: 'Debian trixie by mmdebstrap, Node by npm', tools: ['npm', 'tar'], make: makeDevbox },
}

/** The default, and the first that a fresh machine waits for: nothing is in it that is not needed. */
async function makeDebian13(build: Build): Promise<string> {
  const root = await makeDebianRoot(build, { suite: 'trixie', packages: ['busybox', 'ca-certificates', 'curl'] })
  await linkBusybox(build, root)
  return root
}
