/** What the Dockerfile of a user may build on: the operator's list, the images of the hosts, the user's templates. */
import type { Architecture } from '@warren/dockerfile'
import { unavailable } from '@warren/kit/failure'
import { spellCommand } from '@warren/kit/warren-command'
import { templateImageName } from '@warren/protocol'
import type { TemplateRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import type { BaseRules } from './base.ts'
import type { TemplateRules } from './plan.ts'
import { findReadyTemplate } from './queries.ts'

const RETRY_S = 2

export const createRules = (deps: Deps, userId: string): TemplateRules => ({
  architecture: ARCHITECTURE,
  allowedBases: deps.config.templateBases,
  findImage: (name) => findImage(deps, name),
  findReadyTemplate: (nameOrId) => findReadyTemplate(deps.db, userId, nameOrId),
})

/** The rules under which a template that was accepted is planned again: its base is known. */
export const fixedRules = ({ image, base_env: env }: TemplateRow): TemplateRules => ({
  architecture: ARCHITECTURE,
  allowedBases: [image],
  findImage: async () => ({ env }),
  findReadyTemplate: async () => ({ id: image.replace(templateImageName('tpl_'), 'tpl_'), env }),
})

/** Hosts run on the architecture of the control plane: they are on the same machine. */
const ARCHITECTURE: Architecture = process.arch === 'arm64' ? 'arm64' : 'amd64'

/** A host that is away counts with what it had: the build waits for it. */
async function findImage(deps: Deps, name: string): ReturnType<BaseRules['findImage']> {
  const hosts = await deps.db.selectFrom('hosts').select('images').execute()
  const states = hosts.flatMap(({ images }) => images.filter((one) => one.name === name).map(({ state }) => state))
  if (states.includes('ready')) return { env: {} }
  if (hosts.length === 0) throw unavailable('no host is available', { retryAfterSeconds: RETRY_S })
  if (states.includes('building')) {
    throw unavailable(`${name} is still being built`, { retryAfterSeconds: RETRY_S })
  }
  const listed = await deps.db.selectFrom('rootfs').select('enable_with').where('name', '=', name).executeTakeFirst()
  // An image that is built here has no command in the catalog, because it is always enabled.
  const build = listed && listed.enable_with === null ? `warren images build ${name}` : undefined
  const command = build ?? listed?.enable_with ?? `warren images import <oci-reference or tarball> --name ${name}`
  return { addWith: spellCommand(command) }
}
