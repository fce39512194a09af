// The shape that a dashboard of ours must have: Grafana's own types of dashboards, and of the options of each kind of
// panel. tests/deploy/test_dashboards.py puts each dashboard behind it, as a value of type Checked.

import type { Dashboard, DataTransformerConfig, FieldConfig, MatcherConfig, Panel, RowPanel } from '@grafana/schema';
import type * as histogram from '@grafana/schema/dist/esm/raw/composable/histogram/panelcfg/x/HistogramPanelCfg_types.gen.js';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen.js';
import type * as table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen.js';
import type * as timeseries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen.js';

// Enums as JSON has them: by their values.
type Plain<T> = T extends string
  ? `${T}`
  : T extends number
    ? number extends T
      ? number
      : `${T}` extends `${infer Value extends number}`
        ? Value
        : never
    : T extends (infer Item)[]
      ? Plain<Item>[]
      : T extends object
        ? { [Key in keyof T]: Plain<T[Key]> }
        : T;

interface PrometheusTarget {
  refId: string;
  datasource: { type: 'prometheus'; uid: '${datasource}' };
  expr: string;
  legendFormat: string;
  instant: boolean;
  range: boolean;
  format: 'time_series' | 'table';
}

interface InfinityTarget {
  refId: string;
  datasource: { type: 'yesoreyeram-infinity-datasource'; uid: '${infinity}' };
  type: 'json';
  parser: 'backend';
  source: 'url';
  url: string;
  url_options: { method: 'GET'; data: '' };
  format: 'table' | 'timeseries';
  root_selector: string;
  columns: { selector: string; text: string; type: 'string' | 'number' | 'timestamp_epoch_s' }[];
  filters: [];
}

interface Fields<Custom> {
  defaults: Plain<Omit<FieldConfig, 'custom'>> & { custom?: Partial<Plain<Custom>> };
  overrides: { matcher: MatcherConfig; properties: { id: string; value: unknown }[] }[];
}

type PanelOf<Kind extends string, Options, Custom> = Plain<
  Pick<Panel, 'id' | 'gridPos' | 'title' | 'description' | 'datasource'>
> & {
  type: Kind;
  title: string;
  description: string;
  targets: (PrometheusTarget | InfinityTarget)[];
  fieldConfig: Fields<Custom>;
  options: Partial<Plain<Options>>;
  transformations?: DataTransformerConfig[];
};

type OurPanel =
  | PanelOf<'stat', stat.Options, object>
  | PanelOf<'timeseries', timeseries.Options, timeseries.FieldConfig>
  | PanelOf<'histogram', histogram.Options, histogram.FieldConfig>
  | PanelOf<'table', table.Options, table.FieldConfig>;

type Row = Plain<Omit<RowPanel, 'panels'>> & { panels: OurPanel[] };

export type Checked = Plain<Omit<Dashboard, 'panels'>> & { panels: (OurPanel | Row)[] };
