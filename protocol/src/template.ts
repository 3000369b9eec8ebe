/** Templates: root file systems built from Dockerfiles (spec 2.8, 3.3, 4.7; wire 9). */
import { type Static, Type } from 'typebox'
import { Pagination } from './envelope.ts'
import { TemplateId, Timestamp } from './ids.ts'
import { optionalNull } from './optional-null.ts'
import { utf8Length } from './utf8.ts'

export const TEMPLATE_STATUSES = ['pending', 'building', 'ready', 'failed'] as const
export type TemplateStatus = (typeof TEMPLATE_STATUSES)[number]
export const TemplateStatus = Type.Enum(TEMPLATE_STATUSES)

/** What may become what. A delete removes the record in every status and cancels a build under way. */
export const TEMPLATE_MOVES = {
  build: { from: ['pending'], to: 'building' },
  buildDone: { from: ['building'], to: 'ready' },
  buildFailed: { from: ['building'], to: 'failed' },
} as const satisfies Record<string, { from: readonly TemplateStatus[]; to: TemplateStatus }>
export type TemplateMove = keyof typeof TEMPLATE_MOVES

export const DOCKERFILE_MAX_BYTES = 64 * 1024
/** Per user; 429 beyond. */
export const TEMPLATE_BUILDS_MAX_DEFAULT = 2
/** Packing the result is not counted. */
export const TEMPLATE_BUILD_TIMEOUT_MS = 10 * 60_000
export const TEMPLATE_ROOTFS_MAX_BYTES = 5_000_000_000
export const TEMPLATE_LOG_LINE_MAX_BYTES = 64 * 1024

export const TemplateCreateBody = Type.Object({
  name: Type.String({
    pattern: '^[a-z0-9-]{1,63}$',
    description: 'Lower case letters, digits and dashes. May repeat: a name means the latest ready build.',
  }),
  dockerfile: Type.String({ minLength: 1, description: 'At most 64 KiB; one FROM, no COPY, no ADD.' }),
  base: optionalNull(Type.String({ description: 'Ignored: FROM decides.' })),
})
export type TemplateCreateBody = Static<typeof TemplateCreateBody>

/** For the field `dockerfile`. Its instructions are judged where they are built. */
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
  base: Type.String({ description: 'What FROM names.' }),
  status: TemplateStatus,
  ext4_size_bytes: Type.Integer({ description: '0 until it is built.' }),
  created_at: Timestamp,
  built_at: Type.Union([Timestamp, Type.Null()]),
  dockerfile: Type.Optional(Type.String({ description: 'Only with include=dockerfile.' })),
})
export type TemplateView = Static<typeof TemplateView>

/** Both arrays are equal: clients of the spec read `templates`, others the ordinary page. */
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
  follow: Type.Optional(Type.Boolean({ description: 'Ends with a final line that tells the status.' })),
  attempt: Type.Optional(Type.Integer({ minimum: 0, description: 'Only this build attempt; 0 or absent: all.' })),
})
export type TemplateLogsQuery = Static<typeof TemplateLogsQuery>

export const TemplateLogLine = Type.Object({
  stream: Type.String({ description: 'Raw build output.' }),
  line: Type.String({ description: 'The same without its line end.' }),
  ts: Timestamp,
  attempt: Type.Integer({ minimum: 1 }),
})
export type TemplateLogLine = Static<typeof TemplateLogLine>

/** Last, and only with `follow=true`. A cancelled build is failed. */
export const TemplateLogFinal = Type.Object({ final: Type.Literal(true), status: Type.Enum(['ready', 'failed']) })
export type TemplateLogFinal = Static<typeof TemplateLogFinal>

export const TemplateLogFrame = Type.Union([TemplateLogLine, TemplateLogFinal])
export type TemplateLogFrame = Static<typeof TemplateLogFrame>
