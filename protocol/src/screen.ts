/** Screens of a desktop, and how to watch one (spec 2.15, 4.12; wire 14). */
import { type Static, Type } from 'typebox'
import { Timestamp } from './ids.ts'
import { optionalNull } from './optional-null.ts'

/** X11 keeps coordinates in 16 bits with a sign. */
const COORDINATE_MAX = 32_767
export const Pixels = Type.Integer({ minimum: -COORDINATE_MAX - 1, maximum: COORDINATE_MAX })
export const SideLength = Type.Integer({ minimum: 1, maximum: COORDINATE_MAX })

export const SCREENS_MAX = 8
export const SCREEN_WIDTH_DEFAULT = 1280
export const SCREEN_HEIGHT_DEFAULT = 800
/** Always there: it cannot be deleted. */
export const PRIMARY_SCREEN_ID = 'screen-0'

export const ScreenId = Type.String({ pattern: `^screen-[0-${SCREENS_MAX - 1}]$` })

export const ScreenView = Type.Object({
  screen_id: ScreenId,
  display: Type.String(),
  width: Type.Integer(),
  height: Type.Integer(),
  vnc_port: Type.Integer(),
  novnc_port: Type.Integer(),
})
export type ScreenView = Static<typeof ScreenView>

/** The number in the id decides where a screen is found; undefined for an id no screen can have. */
export function screenPlace(screenId: string): Pick<ScreenView, 'display' | 'vnc_port' | 'novnc_port'> | undefined {
  const number = Number(/^screen-([0-7])$/.exec(screenId)?.[1] ?? Number.NaN)
  if (Number.isNaN(number)) return undefined
  return { display: `:${number}`, vnc_port: 5900 + number, novnc_port: 6080 + number }
}

export const ScreenListView = Type.Array(ScreenView)

export const ScreenParams = Type.Object({
  id: Type.String({ description: 'Sandbox id' }),
  screen: Type.String({ description: 'Screen id' }),
})
export type ScreenParams = Static<typeof ScreenParams>

/** Answers 201. */
export const ScreenCreateBody = Type.Object({
  width: optionalNull(SideLength),
  height: optionalNull(SideLength),
})
export type ScreenCreateBody = Static<typeof ScreenCreateBody>

export const ScreenResizeBody = Type.Object({ width: SideLength, height: SideLength })
export type ScreenResizeBody = Static<typeof ScreenResizeBody>

/** Token and URL are credentials. A new token closes the old one to new connections only. */
export const ScreenConnectView = Type.Object({
  screen_id: ScreenId,
  port: Type.Integer(),
  path: Type.String({ description: 'Works against the API base URL too.' }),
  token: Type.String(),
  expires_at: Timestamp,
  url: Type.String(),
})
export type ScreenConnectView = Static<typeof ScreenConnectView>
