/** Templates: root filesystems built from Dockerfiles. */
import { type Static, Type } from 'typebox'
import { Pagination } from './envelope.ts'
import { TemplateId, Timestamp } from './ids.ts'
import { optionalNull } from './optional-null.ts'
import { utf8Length } from './utf8.ts'

export const TEMPLATE_STATUSES = ['pending', 'building', 'ready', 'failed'] as const
export type TemplateStatus = (typeof TEMPLATE_STATUSES)[number]
export const TemplateStatus = Type.Enum(TEMPLATE_STATUSES)

/** Allowed transitions of a template. A delete removes the record in every status and cancels a running build. */
export const TEMPLATE_MOVES = {
  build: { from: ['pending'], to: 'building' },
  buildDone: { from: ['building'], to: 'ready' },
  buildFailed: { from: ['building'], to: 'failed' },
} as const satisfies Record<string, { from: readonly TemplateStatus[]; to: TemplateStatus }>
export type TemplateMove = keyof typeof TEMPLATE_MOVES

export const DOCKERFILE_MAX_BYTES = 64 * 1024
/** A build that was interrupted by the service is tried again. Errors in the Dockerfile are not. */
export const TEMPLATE_ATTEMPTS_MAX = 3
/** Concurrent builds per user. The next one gets a 429. */
export const TEMPLATE_BUILDS_MAX_DEFAULT = 2
/** Does not include packing the result. */
export const TEMPLATE_BUILD_TIMEOUT_MS = 10 * 60_000
export const TEMPLATE_ROOTFS_MAX_BYTES = 5_000_000_000
export const TEMPLATE_LOG_LINE_MAX_BYTES = 64 * 1024

export const TemplateCreateBody = Type.Object({
  name: Type.String({
    pattern: '^[a-z0-9-]{1,63}$',
    description:
      '1 to 63 lower case letters, digits and dashes. Need not be unique: a name refers to the latest ready build.',
  }),
  dockerfile: Type.String({
    minLength: 1,
    description: 'Dockerfile of at most 64 KiB with one FROM and without COPY or ADD.',
  }),
  base: optionalNull(Type.String({ description: 'Ignored. The base is taken from FROM.' })),
  no_cache: optionalNull(Type.Boolean({ description: 'Run every step again, even if its result is cached.' })),
})
export type TemplateCreateBody = Static<typeof TemplateCreateBody>

/** Error text for the field `dockerfile`, or undefined. The build checks the instructions. */
export function checkDockerfileSize(dockerfile: string): string | undefined {
  return utf8Length(dockerfile) > DOCKERFILE_MAX_BYTES ? `must not exceed ${DOCKERFILE_MAX_BYTES} bytes` : undefined
}

export const TemplateParams = Type.Object({ id: Type.String({ description: 'Template id or name' }) })
export type TemplateParams = Static<typeof TemplateParams>

export const TemplateGetQuery = Type.Object({ include: Type.Optional(Type.Enum(['dockerfile'])) })
export type TemplateGetQuery = Static<typeof TemplateGetQuery>

export const TemplateView = Type.Object({
  id: TemplateId,
  name: Type.String(),
  base: Type.String({ description: 'Image that FROM names.' }),
  status: TemplateStatus,
  ext4_size_bytes: Type.Integer({ description: 'Size of the built root filesystem; 0 until it is built.' }),
  created_at: Timestamp,
  built_at: Type.Union([Timestamp, Type.Null()], { description: 'Null until it is built.' }),
  failure_reason: Type.Optional(Type.String({ description: 'Why the build failed. Present only if it did.' })),
  dockerfile: Type.Optional(Type.String({ description: 'Present only with include=dockerfile.' })),
})
export type TemplateView = Static<typeof TemplateView>

/** `data` and `templates` are equal. Some clients read `templates`, others the page. */
export const TemplateListView = Type.Object({
  data: Type.Array(TemplateView),
  pagination: Pagination,
  templates: Type.Array(TemplateView),
})
export type TemplateListView = Static<typeof TemplateListView>

export const TemplateDeleteView = Type.Object({
  id: TemplateId,
  status: Type.Literal('destroyed'),
  ok: Type.Literal(true),
})
export type TemplateDeleteView = Static<typeof TemplateDeleteView>

export const TemplateLogsQuery = Type.Object({
  follow: Type.Optional(
    Type.Boolean({ description: 'Keep the stream open until the build ends. The last line contains its status.' }),
  ),
  attempt: Type.Optional(
    Type.Integer({ minimum: 0, description: 'Only this build attempt. Defaults to 0: all attempts.' }),
  ),
  after: Type.Optional(
    Type.Integer({
      minimum: 0,
      description: 'Only lines with a higher `number`, to continue after a lost connection. Defaults to 0: all lines.',
    }),
  ),
})
export type TemplateLogsQuery = Static<typeof TemplateLogsQuery>

export const TemplateLogLine = Type.Object({
  stream: Type.String({ description: 'Raw build output.' }),
  line: Type.String({ description: 'The output without its line ending.' }),
  ts: Timestamp,
  attempt: Type.Integer({ minimum: 1 }),
  number: Type.Integer({ minimum: 1, description: 'Position in the log of all attempts.' }),
})
export type TemplateLogLine = Static<typeof TemplateLogLine>

/** The last line, only with `follow=true`. A cancelled build has failed. */
export const TemplateLogFinal = Type.Object({ final: Type.Literal(true), status: Type.Enum(['ready', 'failed']) })
export type TemplateLogFinal = Static<typeof TemplateLogFinal>

export const TemplateLogFrame = Type.Union([TemplateLogLine, TemplateLogFinal])
export type TemplateLogFrame = Static<typeof TemplateLogFrame>
